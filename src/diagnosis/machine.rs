//! Failures that are the fault of a machine, and not of the program on it.

use crate::model::root_cause::{FailureKind, RootCause};

/// Returns why a rank failed if that was its node's fault; a program's own failure is not.
pub fn node_fault(cause: &RootCause, last_lines: &[String]) -> Option<String> {
    match &cause.how {
        // without an error the node answered, and how its rank ended is not known: the launcher may have been lost
        // instead
        FailureKind::Gone { error } => {
            let error = error.as_deref()?.lines().next().unwrap_or_default();
            Some(if error.is_empty() {
                "the node did not answer".to_owned()
            } else {
                format!("the node did not answer: {error}")
            })
        }
        FailureKind::Exited { .. } | FailureKind::Missing { .. } => {
            last_lines.iter().rev().find(|line| is_gpu_fault(line)).cloned()
        }
        FailureKind::Hung { .. } | FailureKind::GaveUp { .. } => None,
    }
}

/// Returns whether a program's line says that a GPU or its driver failed, and not the program: messages of CUDA, NCCL
/// and NVML.
pub fn is_gpu_fault(line: &str) -> bool {
    let patterns = [
        "uncorrectable ECC error",
        "fallen off the bus",
        "GPU is lost",
        "uncorrectable NVLink error",
        "no CUDA-capable device is detected",
        "CUDA-capable device(s) is/are busy or unavailable",
        "system not yet initialized",
        "hardware stack error",
        "Driver/library version mismatch",
    ];
    patterns.iter().any(|pattern| line.contains(pattern))
}
