//! Hints on a port that a program cannot have, and whose it is.

use regex::Regex;
use std::sync::LazyLock;

/// Texts of systems, libraries and programs about a port that is in use, in lower case.
const IN_USE: &[&str] = &[
    // strerror(3): Python, C and C++, PyTorch's TCPStore, Gloo, Go, gRPC, Redis
    "address already in use",
    // Node.js, PyTorch
    "eaddrinuse",
    // Rust, by its own name of the error
    "addrinuse",
    // Ray
    "that is used by other components",
    // accelerate
    "another process is utilizing it",
    // Gradio
    "cannot find empty port in range",
    // TensorBoard, Ray, Dask
    "it was already in use",
    "port is already in use",
];

/// The places of a port in such texts, the surest first.
static PORT: LazyLock<[Regex; 3]> = LazyLock::new(|| {
    [
        r#"(?i)\bport(?:\s+number|\s+in\s+range)?[\s:=`'"]*([1-9][0-9]{1,4})\b"#,
        // Python's addresses: ('0.0.0.0', 8000)
        r"', ([1-9][0-9]{1,4})[,)]",
        // 0.0.0.0:29500, [::]:29500, *:29500; no time of day, and no line of a file
        r"(?:[0-9*\]:]|localhost):([1-9][0-9]{3,4})\b",
    ]
    .map(|pattern| Regex::new(pattern).expect("a valid pattern"))
});

/// Ports that are known to be in use on the nodes of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownPorts {
    /// The first one.
    pub first: u16,
    /// Their number.
    pub count: u16,
    /// The owner and the use of them, as part of a sentence: `the sshd of the workers (cluster.port)`.
    pub owner: String,
}

impl KnownPorts {
    /// Returns the port of the workers' sshd.
    pub fn of_workers(port: u16) -> KnownPorts {
        KnownPorts { first: port, count: 1, owner: "the sshd of the workers (cluster.port)".to_owned() }
    }

    fn has(&self, port: u16) -> bool {
        (u32::from(self.first)..u32::from(self.first) + u32::from(self.count)).contains(&port.into())
    }

    fn text(&self) -> String {
        let last = self.first.saturating_add(self.count.saturating_sub(1));
        let ports = if self.count > 1 { format!("{} to {last}", self.first) } else { self.first.to_string() };
        format!("{ports} {} {}", if self.count > 1 { "are those of" } else { "is that of" }, self.owner)
    }
}

/// Returns a hint on a line about a port that is in use: whose it is, as far as that is `known`.
pub(super) fn port_in_use(line: &str, known: &[KnownPorts]) -> Option<String> {
    let lower = line.to_lowercase();
    if !IN_USE.iter().any(|text| lower.contains(text)) {
        return None;
    }
    let port = PORT.iter().find_map(|pattern| pattern.captures(line)).and_then(|found| found[1].parse::<u16>().ok());
    let list = |known: Vec<&KnownPorts>| known.iter().map(|known| known.text()).collect::<Vec<_>>().join(", ");
    let of_port = port.map(|port| known.iter().filter(|known| known.has(port)).collect::<Vec<_>>());
    Some(match (port, of_port) {
        (Some(_), Some(owners)) if !owners.is_empty() => {
            format!("{}; let the program listen on another one", list(owners))
        }
        (Some(port), _) => format!(
            "no other job that is known has port {port}: `ss -ltnp 'sport = :{port}'` on the node shows which process has \
             it; end that, or let the program listen on another port"
        ),
        (None, _) if known.is_empty() => {
            "`ss -ltnp` on the node shows which process has the port; let the program listen on another one".to_owned()
        }
        (None, _) => format!(
            "of the ports there, {}; `ss -ltnp` on the node shows the others. Let the program listen on another one",
            list(known.iter().collect())
        ),
    })
}
