//! The meaning of NVIDIA's Xid errors: the well-known numbers of "XID Errors" (docs.nvidia.com/deploy/xid-errors), in
//! our words.

use crate::model::finding::Severity::{self, Error, Note, Warning};

/// Returns how much an error matters that occurred since the boot, and what it means; `None` if its number is not among
/// the well-known ones. What a reset of the GPU repairs is a warning: whether there was one is not known, and other
/// rules look at the GPU's state.
pub(super) fn meaning(number: u32) -> (Severity, Option<&'static str>) {
    let (severity, meaning) = match number {
        13 => (Note, "a program made the compute engine fail"),
        31 => (Note, "a program used an invalid address"),
        32 => (Warning, "an invalid or corrupted stream of commands"),
        38 => (Warning, "the driver's firmware failed"),
        43 => (Note, "a program's work on the GPU was stopped after an error"),
        45 => (
            Note,
            "the driver ended the rest of a program's work after an earlier error, or because the program was killed",
        ),
        46 => (Warning, "the GPU stopped working"),
        48 => (Warning, "an uncorrectable ECC error (double bit)"),
        61 | 62 => (Warning, "the GPU's own controller failed"),
        63 => (Warning, "a page of memory is to be retired, or a row remapped"),
        64 => (Warning, "a page of memory could not be retired, or a row not remapped"),
        69 => (Note, "a program made the graphics engine fail"),
        74 => (Warning, "an NVLink failed"),
        79 => (Error, "the GPU has fallen off the bus"),
        92 => (Warning, "many corrected ECC errors"),
        94 => (Warning, "an uncorrectable memory error that ended one program only"),
        95 => (Warning, "an uncorrectable memory error that may have damaged every program on the GPU"),
        109 => (Warning, "the GPU took too long to switch between programs"),
        119 | 120 => (Warning, "the GPU's system processor (GSP) failed or did not answer"),
        121 => (Warning, "the link between GPU and CPU (C2C) had an error"),
        140 => (Warning, "ECC errors that were not recovered"),
        143 => (Warning, "the GPU could not be initialized"),
        144..=150 => (Warning, "an NVLink error"),
        154 => (Warning, "the driver recommended to reset the GPU or to reboot"),
        _ => return (Warning, None),
    };
    (severity, Some(meaning))
}
