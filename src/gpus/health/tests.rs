//! Recorded documents, synthesized ones of many drivers and GPUs, and what is no document.

mod synthesized;

use super::report::{KernelLog, NodeHealth};
use super::*;
use proptest::prelude::{any, prop, prop_assert, proptest};
use synthesized::{DRIVERS, MODELS, STATES, State, document};

const H100: &str = include_str!("../../../tests/fixtures/nvidia-smi/h100-580-idle.xml");
const H200: &str = include_str!("../../../tests/fixtures/nvidia-smi/h200-580-busy.xml");

#[test]
fn a_real_gpu_is_read() {
    let health = MachineHealth::read(H200).unwrap();
    assert_eq!((health.driver.as_str(), health.attached, health.message.as_str()), ("580.159.04", 1, ""));
    let [gpu] = &health.gpus[..] else { panic!("{health:?}") };
    assert_eq!(gpu.name, Reading::Known("NVIDIA H200".into()));
    assert_eq!((gpu.bus.as_str(), gpu.memory_mib.known()), ("00000000:00:06.0", Some(&143_771)));
    assert_eq!((gpu.temperature_c.known(), gpu.margin_c.known()), (Some(&49), Some(&38)));
    let power = [&gpu.power_w, &gpu.power_limit_w, &gpu.default_power_limit_w].map(|reading| reading.known().copied());
    assert_eq!(power, [Some(409.9), Some(700.0), Some(700.0)]);
    assert_eq!((gpu.pcie_width.known(), gpu.max_pcie_width.known()), (Some(&16), Some(&16)));
    assert_eq!((gpu.recovery_action.clone(), &gpu.fabric), (Reading::Known("None".into()), &Reading::Absent));
    assert_eq!((gpu.is_idle(), gpu.uncorrected_errors.known()), (false, Some(&0)));
    assert_eq!(gpu.processes, [GpuProcess { pid: 532, program: "python3".into(), memory_mib: Reading::Known(900) }]);
    assert!(gpu.unread().is_empty() && gpu.failures.is_empty() && gpu.slowdowns.is_empty(), "{gpu:?}");
    let idle = &MachineHealth::read(H100).unwrap().gpus[0];
    assert!(idle.is_idle() && idle.slowdowns.is_empty() && idle.failures.is_empty(), "{idle:?}");
}

#[test]
fn documents_of_many_drivers_and_gpus_are_read() {
    let mut read = 0;
    for driver in DRIVERS {
        for (model, state) in MODELS.into_iter().flat_map(|model| STATES.map(|state| (model, state))) {
            let of = format!("{driver} {} {state:?}", model.name);
            let health = MachineHealth::read(&document(driver, model, state)).unwrap_or_else(|e| panic!("{of}: {e}"));
            assert_eq!((health.gpus.len(), health.attached, health.driver.as_str()), (8, 8, driver), "{of}");
            for gpu in &health.gpus {
                let state = if gpu.index == 2 { state } else { State::Sound };
                let is_lost = state == State::Lost;
                assert_eq!(gpu.name, Reading::Known(model.name.into()), "{of}");
                assert_eq!(gpu.memory_mib.known(), Some(&model.memory).filter(|_| !is_lost), "{of}");
                assert_eq!(gpu.temperature_c.known(), Some(&40).filter(|_| !is_lost), "{of}");
                assert_eq!(gpu.margin_c.known().is_some(), !is_lost, "{of}");
                assert_eq!(!gpu.failures.is_empty(), matches!(state, State::Lost | State::UnknownError), "{of}");
                assert!(gpu.unread().is_empty(), "{of}: {:?}", gpu.unread());
                assert_eq!(gpu.slowdowns.contains(&Slowdown::Hardware), state == State::Slowed, "{of}");
                assert_eq!(gpu.slowdowns.contains(&Slowdown::PowerCap), !is_lost, "{of}");
                let counts = model.has_ecc && state != State::WithoutEcc;
                let errors = if state == State::EccErrors { 3 } else { 0 };
                assert_eq!(gpu.uncorrected_errors.known(), Some(&errors).filter(|_| counts && !is_lost), "{of}");
                assert_eq!(matches!(gpu.uncorrected_errors, Reading::Failed(_)), counts && is_lost, "{of}");
                assert_eq!(
                    gpu.repair_pending.known(),
                    Some(&(errors > 0 && model.remaps)).filter(|_| counts && !is_lost),
                    "{of}"
                );
                assert_eq!(gpu.power_limit_w.known(), Some(&400.0).filter(|_| !is_lost), "{of}");
                assert_eq!(gpu.power_w.known(), Some(&70.1).filter(|_| gpu.failures.is_empty()), "{of}");
                assert_eq!(gpu.mig_devices, if state == State::Divided && model.has_mig { 2 } else { 0 }, "{of}");
                assert_eq!(gpu.mig.known().is_some(), model.has_mig, "{of}");
                assert_eq!((gpu.pcie_generation.known(), gpu.max_pcie_width.known()).1.is_some(), !is_lost, "{of}");
            }
            read += 1;
        }
    }
    assert!(read >= 400, "{read}");
}

#[test]
fn a_truncated_document_is_named_wherever_it_is_cut() {
    let whole = document("550.163.01", MODELS[2], State::EccErrors);
    let whole = whole.trim_end();
    for end in (0..whole.len()).step_by(13).chain([whole.len() - 1]) {
        let error = MachineHealth::read(&whole[..end]).unwrap_err();
        assert!(!error.is_empty(), "{end}");
        let report: String = whole[..end].lines().map(|line| format!("xml {line}\n")).collect();
        let health = NodeHealth::parse(&format!("{report}xml exit 0\n"));
        assert!(matches!(health.machine, Some(Err(_))), "{end}: {health:?}");
    }
    assert!(MachineHealth::read(whole).is_ok());
}

proptest! {
    #[test]
    fn whatever_is_changed_in_a_document_it_is_read_or_refused(
        changes in prop::collection::vec((any::<prop::sample::Index>(), 0..40_usize, "[<>/&;a-z0-9 \
            \\[\\]]{0,8}"), 1..6),
    ) {
        let mut text = H200.to_owned();
        for (at, length, other) in changes {
            let at = at.index(text.len());
            // the recorded documents are ASCII
            text.replace_range(at..(at + length).min(text.len()), &other);
        }
        match MachineHealth::read(&text) {
            Ok(machine) => prop_assert!(!machine.driver.is_empty() || !machine.gpus.is_empty()),
            Err(reason) => prop_assert!(!reason.is_empty()),
        }
    }
}

#[test]
fn a_driver_that_writes_something_else_is_no_sound_one() {
    let odd = document("580.159.04", MODELS[0], State::Sound)
        .replace("<dram_uncorrectable>0", "<dram_uncorrectable>none yet")
        .replace("<remapped_row_pending>No", "<remapped_row_pending>Perhaps");
    let gpu = &MachineHealth::read(&odd).unwrap().gpus[0];
    let unread = [("uncorrected ECC errors", "none yet"), ("pending repairs of memory", "Perhaps")];
    assert_eq!(gpu.unread(), unread);
}

/// The lines of the script for an `nvidia-smi` that writes this and exits so.
fn report(document: &str, code: &str, more: &str) -> NodeHealth {
    let lines: String = document.lines().map(|line| format!("xml {line}\n")).collect();
    NodeHealth::parse(&format!("{lines}xml \n{code}{more}"))
}

#[test]
fn an_nvidia_smi_that_fails_is_no_healthy_one() {
    let sound = document("550.163.01", MODELS[0], State::Sound);
    let lost = "Unable to determine the device handle for GPU0000:41:00.0: Unknown Error";
    let inside = sound.replacen("<gpu id", &format!("{lost}\n<gpu id"), 1);
    for (document, code, expected) in [
        (sound.as_str(), "xml exit 0\n", (true, None)),
        (&format!("WARNING: infoROM is corrupted at gpu 0000:3B:00.0\n{sound}"), "xml exit 14\n", (true, None)),
        (&sound, "xml exit 15\n", (true, Some("exit code 15"))),
        (&sound, "", (true, Some("no answer within 20 s"))),
        (&format!("{lost}\n{sound}"), "xml exit 15\n", (true, Some(lost))),
        (&inside, "xml exit 0\n", (true, Some(lost))),
        (lost, "xml exit 9\n", (false, Some(lost))),
        ("", "xml exit 124\n", (false, Some("no answer within 20 s"))),
        ("", "", (false, Some("no answer within 20 s"))),
        ("", "xml exit 139\n", (false, Some("exit code 139"))),
        (
            "<nvidia_smi_log>\n</nvidia_smi_log>",
            "xml exit 0\n",
            (false, Some("its XML cannot be read: it names neither a driver nor a GPU")),
        ),
        (&sound[..900], "xml exit 0\n", (false, Some("its XML cannot be read: it is cut off"))),
    ] {
        let health = report(document, code, "");
        let machine = health.machine.unwrap();
        let message = machine.as_ref().err().or(health.complaint.as_ref());
        assert_eq!((machine.is_ok(), message.map(ToString::to_string).as_deref()), expected, "{code}");
    }
    assert_eq!(NodeHealth::parse("").machine, None, "there is no nvidia-smi");
    let hangs = NodeHealth::parse("nvidia-smi yes\ndcgmi\n");
    assert_eq!(hangs.machine, Some(Err(crate::node::gpus::GpuQueryFailure::NoAnswer)), "it could not even be killed");
    assert_eq!(hangs.diagnosis, Some(Err("no answer".into())));
}

#[test]
fn links_places_and_errors_are_read() {
    let more = "link GPU 0: NVIDIA H100 (UUID: GPU-0)\nlink \t Link 0: 26.562 GB/s\nlink \t Link 1: <inactive>\n\
                link GPU 1: NVIDIA H100 (UUID: GPU-1)\nlink Unable to retrieve NVLink information as all links are \
                inActive\n\
                link exit 0\npci 0000:00:00.0\npci 0000:07:00.0\npci 0000:41:00.0\nlog partial\n\
                xid 3 NVRM: Xid (PCI:0000:41:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n\
                xid 1 NVRM: Xid (0000:03:00): 13, Graphics Exception\nxid x\nlater thing\n";
    let health = report(&document("550.163.01", MODELS[0], State::Sound), "xml exit 0\n", more);
    let links: Vec<_> = health.machine().unwrap().gpus[..2].iter().map(|gpu| gpu.links).collect();
    assert_eq!(links, [Some(Links { active: 1, all: 2 }), None]);
    assert_eq!((health.unlisted.as_slice(), &health.log), (&["0000:41:00.0".to_owned()][..], &KernelLog::Partial));
    let xids: Vec<_> = health.xids.iter().map(|x| (x.bus.as_str(), x.number, x.count, x.text.as_str())).collect();
    assert_eq!(
        xids,
        [("0000:41:00", 79, 3, "GPU has fallen off the bus."), ("0000:03:00", 13, 1, "Graphics Exception")]
    );
    let unread = NodeHealth::parse("log unread dmesg: read kernel buffer failed: Operation not permitted\n");
    assert_eq!(unread.log, KernelLog::Unread("dmesg: read kernel buffer failed: Operation not permitted".into()));
}

#[test]
fn what_dcgm_found_is_read() {
    let table = |lines: &str| {
        let lines: String = lines.lines().map(|line| format!("dcgmi {line}\n")).collect();
        NodeHealth::parse(&format!("{lines}dcgmi exit 0\n")).diagnosis.unwrap()
    };
    let three = table(
        "Successfully ran diagnostic for group.\n\
         +---------------------------+------------------------------------------------+\n\
         | Diagnostic                | Result                                         |\n\
         +===========================+================================================+\n\
         |-----  Metadata  ----------+------------------------------------------------|\n\
         | DCGM Version              | 3.1.7                                          |\n\
         |-----  Deployment  --------+------------------------------------------------|\n\
         | Denylist                  | Pass                                           |\n\
         | Persistence Mode          | Fail                                           |\n\
         | Warning                   | GPU 0Persistence mode for GPU 0 is disabled.   |\n\
         |                           | Enable it.                                     |\n\
         | Inforom                   | Skip                                           |\n\
         | Page Retirement/Row Remap | Pass                                           |\n",
    );
    let three = three.unwrap();
    let failed: Vec<_> = three.failed.iter().map(|test| (&*test.name, &*test.result, &*test.message)).collect();
    assert_eq!(three.passed, 2);
    assert_eq!(failed, [("Persistence Mode", "Fail", "GPU 0Persistence mode for GPU 0 is disabled. Enable it.")]);
    let four = table(
        "| software                  | Pass                                           |\n|                           | \
         GPU0: Pass                                     |\n",
    );
    assert_eq!((four.as_ref().unwrap().passed, four.unwrap().failed.len()), (1, 0));
    let error = "Error: unable to establish a connection to the specified host: localhost";
    assert_eq!(table(error).unwrap_err(), error);
    assert_eq!(NodeHealth::parse("dcgmi\n").diagnosis.unwrap().unwrap_err(), "no answer");
    assert_eq!(NodeHealth::parse("xml exit 0\n").diagnosis, None);
}
