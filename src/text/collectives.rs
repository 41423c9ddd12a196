//! The lines of libraries for collective operations about a rank that gave up waiting for other ranks, or lost its
//! connection to one. Whatever made the other rank late or ended it is the cause, and not this one.

use std::fmt;

/// Texts of lines with which a rank gives up waiting.
const TIME_OUTS: &[&str] = &[
    // gloo/transport/tcp/unbound_buffer.cc, gloo/transport/tcp/pair.cc
    "ms for recv operation to complete",
    "ms for send operation to complete",
    "] Read timeout [",
    "] Write timeout [",
    // torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp
    // "Watchdog caught …" since 1.11, "Caught …" before
    "aught collective operation timeout",
    "Exception (either an error or timeout) detected by watchdog at work:",
    "Received a dump signal due to a collective timeout from",
    "Some NCCL operations have failed or timed out",
    // torch/csrc/distributed/c10d/ProcessGroupGloo.cpp
    MONITORED_BARRIER,
    "timed out in monitoredBarrier after",
    // torch/csrc/distributed/c10d/TCPStore.cpp, TCPStoreBackend.cpp, socket.cpp
    "seconds waiting for clients. ",
    "wait timeout after ",
    "Error: Socket Timeout",
    "The client socket has timed out after",
    // torch/distributed/distributed_c10d.py of earlier versions
    "in store based barrier on rank",
    // torch/distributed/elastic/rendezvous
    "RendezvousTimeoutError",
];

/// Texts of lines with which a rank fails because another one has ended.
const LOST_CONNECTIONS: &[&str] = &[
    // gloo/transport/tcp/pair.cc
    "Connection closed by peer",
    // torch/csrc/distributed/c10d/ProcessGroupGloo.cpp, of which the reason follows
    REACHED_BARRIER,
    // torch/csrc/distributed/c10d/Utils.hpp, TCPStore.cpp
    "Connection was likely closed",
    // NCCL's src/misc/socket.cc and src/init.cc
    "Connection closed by remote peer",
    "remote process exited or there was a network error",
    "ncclRemoteError",
    // Open MPI's opal/mca/btl/tcp/help-mpi-btl-tcp.txt and ompi/errhandler/errcode.c
    "An MPI communication peer process has unexpectedly",
    "MPI_ERR_PROC_FAILED",
    // MPICH's src/mpi/errhan/errnames.txt
    "Communication error with rank",
    // torch/distributed/elastic/rendezvous: the node with the store has gone
    "RendezvousConnectionError",
    "RendezvousClosedError",
    // horovod/common/common.h
    "Horovod has been shut down. This was caused by an exception on one of the ranks",
];

/// The system's own texts for a lost connection, of whatever program. They count in a line that names a library.
const SYSTEM_TEXTS: &[&str] = &["Connection reset by peer", "Connection refused", "Broken pipe"];

/// Words by which the lines of libraries for collective operations are recognized.
const LIBRARIES: &[&str] = &[
    "gloo",
    "Gloo",
    "NCCL",
    "nccl",
    // torch/csrc/distributed/c10d
    "c10d",
    "TCPStore",
    "torch.distributed",
    "Horovod",
    "horovod",
    "MPI",
    // Open MPI's opal/mca/btl/tcp, and NCCL's src/misc/socket.cc and src/transport/net_socket.cc
    "btl_tcp",
    "socketStartConnect",
    "socketPollConnect",
    "socketProgress",
    "Net : ",
    "UCX",
];

/// The beginning of the line in which `rank_supervisor.py` names a rank that Horovod's stall check has named. It counts
/// if the rank gave up.
const MISSING_RANKS: &str = "Missing ranks: ";

/// The text about ranks that have not come to a monitored barrier, whose numbers precede it.
const MONITORED_BARRIER: &str = "failed to pass monitoredBarrier in";

/// The text of a rank that has come to it, about the one that coordinates.
const REACHED_BARRIER: &str = " successfully reached monitoredBarrier, but received errors while waiting";

/// Returns the texts by which such lines are recognized.
pub fn texts() -> impl Iterator<Item = &'static str> {
    TIME_OUTS.iter().chain(LOST_CONNECTIONS).chain(SYSTEM_TEXTS).copied()
}

/// An operation of NCCL.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct NcclOperation {
    /// The process group, each of which counts its operations, if the line names it.
    pub group: Option<String>,
    /// Its number among those of the process group.
    pub sequence: u64,
    /// Its type, such as `ALLREDUCE`.
    pub name: String,
}

impl NcclOperation {
    /// Reads `[PG ID 0 PG GUID 0(default_pg) Rank 1] … WorkNCCL(SeqNum=5, OpType=ALLREDUCE, …`; `None` if the line is cut
    /// off before its name ends.
    fn read(line: &str) -> Option<NcclOperation> {
        let (before, rest) = line.split_once("WorkNCCL(SeqNum=")?;
        let (sequence, rest) = rest.split_once(", OpType=")?;
        let (name, _) = rest.split_once(|c: char| !c.is_ascii_alphanumeric() && c != '_')?;
        let group = before.split_once("[PG ").and_then(|(_, rest)| rest.split_once(" Rank ")).map(|(group, _)| {
            // the other number is that of the process's own list
            group.split_once("GUID ").map_or(group, |(_, guid)| guid).to_owned()
        });
        Some(NcclOperation { group, sequence: sequence.parse().ok()?, name: name.chars().take(40).collect() })
    }
}

impl fmt::Display for NcclOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (sequence number {})", self.name, self.sequence)
    }
}

/// The reason why a rank gave up, as its last lines have it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GivingUp {
    /// True if its time was over; otherwise it lost a connection.
    pub is_time_out: bool,
    /// The operation in which it waited, if that is known.
    pub operation: Option<NcclOperation>,
    /// The tensors for which it waited, if Horovod names them.
    pub tensors: Option<String>,
    /// The address to which it could not connect, with the port, if that is known.
    pub address: Option<String>,
    /// The ranks that did not come, if the library names them.
    pub missing: Vec<u32>,
}

impl GivingUp {
    /// Reads the lines of a rank; `None` if it did not give up.
    pub fn read<'a>(lines: impl IntoIterator<Item = &'a str>) -> Option<GivingUp> {
        let has = |line: &str, texts: &[&str]| texts.iter().any(|text| line.contains(text));
        let mut found: Option<GivingUp> = None;
        let mut awaited: Vec<(u32, &str)> = Vec::new();
        for line in lines {
            awaited.extend(awaited_rank(line));
            let is_time_out = has(line, TIME_OUTS);
            let is_lost = has(line, LOST_CONNECTIONS) || has(line, SYSTEM_TEXTS) && has(line, LIBRARIES);
            if !is_time_out && !is_lost {
                continue;
            }
            let found = found.get_or_insert_default();
            found.is_time_out |= is_time_out;
            found.missing.extend(missing(line));
            found.operation = found.operation.take().or_else(|| NcclOperation::read(line));
            found.address = found.address.take().or_else(|| address(line));
        }
        let mut found = found?;
        found.missing.extend(awaited.iter().map(|(rank, _)| *rank));
        found.tensors = awaited.first().map(|(_, tensors)| (*tensors).to_owned());
        // a rank that has waited in an operation was connected: the other end has gone since
        found.address = found.address.filter(|_| found.operation.is_none() && found.tensors.is_none());
        Some(found)
    }

    /// Returns the operation in which it waited, as text.
    pub fn place(&self) -> Option<String> {
        self.operation.as_ref().map(NcclOperation::to_string).or_else(|| self.tensors.clone())
    }
}

/// Returns the rank that Horovod's stall check has named, and the tensors for which the others wait: `Missing ranks: 1:
/// [grad, bias]`.
fn awaited_rank(line: &str) -> Option<(u32, &str)> {
    let (rank, tensors) = line.strip_prefix(MISSING_RANKS)?.split_once(": [")?;
    Some((rank.parse().ok()?, tensors.strip_suffix(']').unwrap_or(tensors)))
}

/// Returns the address to which a line says that a connection failed: `while trying to connect to (127.0.0.1, 29605)`,
/// `failed to connect to [node1]:29500`, and NCCL's `Connect to 10.0.0.2<45001> failed`.
fn address(line: &str) -> Option<String> {
    let (_, rest) = line.split_once("onnect to ")?;
    let end = |c: char| c.is_whitespace() || matches!(c, ',' | ')' | '>');
    let (host, rest) = match rest.chars().next()? {
        '(' => rest[1..].split_once(", ")?,
        '[' => rest[1..].split_once("]:")?,
        _ => rest.split_once('<')?,
    };
    let port: u16 = rest.split(end).next()?.trim_end_matches('.').parse().ok()?;
    let is_host = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | ':' | '-' | '_' | '%');
    let is_known = !host.is_empty() && host.len() <= 64 && host.chars().all(is_host);
    is_known.then(|| format!("{host} port {port}"))
}

/// Returns the ranks that a monitored barrier names: `[Rank 0]: Ranks 1, 2 failed to pass`, or `from rank 0. Please
/// check rank 0 logs`.
fn missing(line: &str) -> Vec<u32> {
    if let Some((_, rank)) = line.split_once(REACHED_BARRIER).and_then(|(_, rest)| rest.split_once(" from rank ")) {
        return rank.split('.').next().and_then(|rank| rank.parse().ok()).into_iter().collect();
    }
    let before = line.split_once(MONITORED_BARRIER).and_then(|(before, _)| before.rsplit_once("Rank"));
    let ranks = before.map_or("", |(_, ranks)| ranks.trim_start_matches('s'));
    ranks.split(',').filter_map(|rank| rank.trim().parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks what lines are read as, each a text with its own newlines.
    fn check(lines: &[(&str, GivingUp)]) {
        for (text, read) in lines {
            assert_eq!(GivingUp::read(text.lines()).as_ref(), Some(read), "{text}");
            assert!(texts().any(|known| text.contains(known)), "{text}");
        }
    }

    fn lost() -> GivingUp {
        GivingUp::default()
    }

    fn time_out(missing: &[u32]) -> GivingUp {
        GivingUp { is_time_out: true, missing: missing.into(), ..GivingUp::default() }
    }

    /// Lines of two or three processes with PyTorch 2.15.0 and Gloo, with shorter paths.
    #[test]
    fn lines_of_gloo_are_read() {
        check(&[
            // all_reduce, all_gather_object
            (
                "RuntimeError: [/gloo/unbound_buffer.cc:78] Timed out waiting 5000ms for recv operation to complete",
                time_out(&[]),
            ),
            (
                "RuntimeError: [/gloo/unbound_buffer.cc:129] Timed out waiting 5000ms for send operation to complete",
                time_out(&[]),
            ),
            // a shorter loop, and a killed process
            (
                "RuntimeError: [/gloo/pair.cc:561] Connection closed by peer [127.0.0.1]:14216. This is typically",
                lost(),
            ),
            ("RuntimeError: [/gloo/pair.cc:545] Read error [127.0.0.1]:28544: Connection reset by peer. This", lost()),
            (
                "torch.distributed.DistNetworkError: The client socket has failed to connect to [node1]:29500 (errno: \
                 111 - Connection refused).",
                GivingUp { address: Some("node1 port 29500".into()), ..lost() },
            ),
            // monitored_barrier, with and without wait_all_ranks, and where rank 0 does not come
            (
                "RuntimeError: [Rank 0]: Rank 1 failed to pass monitoredBarrier in 4000 ms\n Original exception: \n\
                 [/gloo/unbound_buffer.cc:78] Timed out waiting 4000ms for recv operation to complete",
                time_out(&[1]),
            ),
            (
                "[E ProcessGroupGloo.cpp:69] [Rank 0]: Ranks 1, 2 failed to pass monitoredBarrier in 4000 ms",
                time_out(&[1, 2]),
            ),
            (
                "RuntimeError: Rank 1 successfully reached monitoredBarrier, but received errors while waiting for \
                 send/recv from rank 0. Please check rank 0 logs for faulty rank.\n Original exception: \n\
                 [/gloo/unbound_buffer.cc:129] Timed out waiting 5000ms for send operation to complete",
                time_out(&[0]),
            ),
        ]);
    }

    /// Of the same, `init_process_group` without rank 1 and without rank 0.
    #[test]
    fn lines_of_a_store_are_read() {
        check(&[
            (
                "torch.distributed.DistStoreError: Timed out after 6 seconds waiting for clients. 1/2 clients joined.",
                time_out(&[]),
            ),
            (
                "torch.distributed.DistNetworkError: The client socket has timed out after 5000ms while trying to \
                 connect to (127.0.0.1, 29605).",
                GivingUp { address: Some("127.0.0.1 port 29605".into()), ..time_out(&[]) },
            ),
            // earlier versions: torch/distributed/distributed_c10d.py
            (
                "RuntimeError: Timed out initializing process group in store based barrier on rank: 0, for key: k",
                time_out(&[]),
            ),
        ]);
    }

    /// Lines of public logs.
    #[test]
    fn lines_of_nccl_are_read() {
        let of = |group: Option<&str>| {
            let operation = NcclOperation { group: group.map(str::to_owned), sequence: 6463, name: "ALLREDUCE".into() };
            GivingUp { operation: Some(operation), ..time_out(&[]) }
        };
        check(&[
            (
                "[E1003 18:37:01.832146912 ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog caught collective operation \
                 timeout: WorkNCCL(SeqNum=6463, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=1800000) ran for \
                 1800017 milliseconds before timing out.\n\
                 [E1003 18:37:01.833637681 ProcessGroupNCCL.cpp:621] [Rank 1] Some NCCL operations have failed or \
                 timed out. Due to the asynchronous nature of CUDA kernels,",
                of(None),
            ),
            // later versions, and one that is cut off
            (
                "[E1003 18:37:01.832146912 ProcessGroupNCCL.cpp:632] [PG ID 2 PG GUID 7(tp) Rank 1] Watchdog caught \
                 collective operation timeout: WorkNCCL(SeqNum=6463, OpType=ALLREDUCE, NumelIn=1",
                of(Some("7(tp)")),
            ),
            (
                "[PG 1 Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=6463, OpType=ALLREDUCE, ",
                of(Some("1")),
            ),
            ("Watchdog caught collective operation timeout: WorkNCCL(SeqNum=6463, OpType=ALLRED", time_out(&[])),
            // PyTorch 1.8 to 1.10, and lines without the first one
            (
                "[E ProcessGroupNCCL.cpp:566] [Rank 0] Caught collective operation timeout: \
                 WorkNCCL(OpType=BROADCAST, Timeout(ms)=1800000) ran for 1808499 milliseconds before timing out.",
                time_out(&[]),
            ),
            (
                "[E626 06:24:44.906457629 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank 1] Exception \
                 (either an error or timeout) detected by watchdog at work: 808, last enqueued NCCL work: 811, last \
                 completed NCCL work: 807.",
                time_out(&[]),
            ),
            (
                "[E606 09:09:08.172519935 ProcessGroupNCCL.cpp:1987] [PG ID 0 PG GUID 0(default_pg) Rank 3] Received a \
                 dump signal due to a collective timeout from this local rank and we will try our best to dump the",
                time_out(&[]),
            ),
            // with NCCL 2.10.3
            ("[E ProcessGroupNCCL.cpp:414] Some NCCL operations have failed or timed out. Due to the", time_out(&[])),
            ("ncclRemoteError: A call failed possibly due to a network error or a remote process exiting", lost()),
            // cut off, or forged
            ("Watchdog caught collective operation timeout: WorkNCCL(SeqNum=x, OpType=, ", time_out(&[])),
            ("Rank s failed to pass monitoredBarrier in", time_out(&[])),
        ]);
    }

    /// Texts of the sources of NCCL 2.18.3 and 2.30 and of nccl-tests, of programs in C++.
    #[test]
    fn lines_of_programs_with_nccl_are_read() {
        check(&[
            (
                "node1:812:830 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer \
                 node2<45001>",
                lost(),
            ),
            (
                "node1:812:830 [0] misc/socket.cc:483 NCCL WARN socketStartConnect: Connect to 10.0.0.2<45001> failed : \
                 Connection refused",
                GivingUp { address: Some("10.0.0.2 port 45001".into()), ..lost() },
            ),
            ("node1: Test NCCL failure common.cu:303 'remote process exited or there was a network error / '", lost()),
        ]);
    }

    /// Texts of the sources of Open MPI 4.1.6 and 5.0.9, and lines of public logs with Open MPI and MPICH.
    #[test]
    fn lines_of_mpi_are_read() {
        check(&[
            ("An MPI communication peer process has unexpectedly disconnected.  This", lost()),
            (
                "[node1][[51384,1],7][../../opal/mca/btl/tcp/btl_tcp.c:559:mca_btl_tcp_recv_blocking] recv(25) failed: \
                 Connection reset by peer (104)",
                lost(),
            ),
            (
                "[node1][[5,1],0][btl_tcp_frag.c:242:mca_btl_tcp_frag_recv] mca_btl_tcp_frag_recv: readv failed: \
                 Connection reset by peer (104)",
                lost(),
            ),
            ("[node1:6084] *** MPI_ERR_PROC_FAILED: Process Failure", lost()),
            ("MPIDI_CH3U_Recvq_FDU_or_AEP(629): Communication error with rank 3", lost()),
        ]);
    }

    /// Texts of PyTorch 2.15.0.
    #[test]
    fn lines_of_torch_elastic_are_read() {
        check(&[
            ("torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError", time_out(&[])),
            (
                "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store \
                 has failed. See inner exception for details.",
                lost(),
            ),
            ("torch.distributed.elastic.rendezvous.api.RendezvousClosedError", lost()),
        ]);
    }

    /// Horovod 0.28.1; `rank_supervisor.py` writes the ranks that its stall check has named behind the reason.
    #[test]
    fn lines_of_horovod_are_read() {
        let shut_down = "horovod.common.exceptions.HorovodInternalError: Horovod has been shut down. This was caused by an \
                         exception on one of the ranks or an attempt to allreduce";
        let named = GivingUp { missing: vec![1, 3], tensors: Some("grad, bias".into()), ..lost() };
        let text = format!("{shut_down}\nMissing ranks: 1: [grad, bias]\nMissing ranks: 3: [bias]");
        check(&[(shut_down, lost()), (&text, named)]);
        for line in ["Missing ranks: 1: [grad]", "Missing ranks: x: [grad]", "Missing ranks: 1: ["] {
            assert_eq!(GivingUp::read([line]), None, "{line}");
        }
    }

    #[test]
    fn a_rank_that_has_waited_in_an_operation_was_connected() {
        let waited = "[E1129 1:2 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout: \
                      WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=1) ran for 60000 milliseconds before timing out.";
        let refused = "torch.distributed.DistNetworkError: The client socket has failed to connect to [node1]:29500 \
                       (errno: 111 - Connection refused).";
        let both = GivingUp::read([waited, refused]).unwrap();
        assert_eq!((both.address, both.operation.unwrap().sequence), (None, 5));
        assert_eq!(GivingUp::read([refused]).unwrap().address.as_deref(), Some("node1 port 29500"));
    }

    #[test]
    fn addresses_are_those_that_lines_name() {
        for (line, found) in [
            ("trying to connect to (::1, 29605).", Some("::1 port 29605")),
            ("failed to connect to [node1]:29500 (errno", Some("node1 port 29500")),
            ("failed to connect to [node1]:99999 (errno", None),
            ("connect to ", None),
            ("connect to (", None),
            ("connect to (a\u{1b}[2J, 1)", None),
            ("cannot connect to the database", None),
        ] {
            assert_eq!(address(line).as_deref(), found, "{line}");
        }
    }

    #[test]
    fn other_lines_say_nothing_of_other_ranks() {
        for line in [
            "",
            "torch.OutOfMemoryError: CUDA out of memory.",
            "waiting for clients",
            "ValueError: timeout",
            // connections of the program to something else
            "requests.exceptions.ConnectionError: [Errno 111] Connection refused",
            "ConnectionResetError: [Errno 104] Connection reset by peer",
            "BrokenPipeError: [Errno 32] Broken pipe",
        ] {
            assert_eq!(GivingUp::read([line]), None, "{line}");
        }
    }
}
