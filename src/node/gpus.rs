//! GPUs that a container is to have.

/// The GPUs that a container asks the engine for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum GpuRequest {
    /// None.
    None,
    /// All (`--gpus all`).
    All,
    /// The first so many (`--gpus 2`).
    First(u32),
    /// These, by index or UUID (`--gpus device=…`).
    Devices(Vec<String>),
}
