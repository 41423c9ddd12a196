//! All documents of `--json`, each of which is defined next to the command that makes it. `docs/json.md` is generated
//! from these types and their comments.

pub use super::about::{DirDocument, TextDocument};
pub use super::data::push::DataPushNode;
pub use super::data::rm::DataRmNode;
pub use super::data::status::{DataEntry, DataStatusNode};
pub use super::disconnect::DisconnectNode;
pub use super::doctor::DoctorDocument;
pub use super::down::DownNode;
pub use super::drain::DrainNode;
pub use super::exec::ExecDocument;
pub use super::fetch::{FetchDocument, FetchedFile};
pub use super::grade::{Areas, GradeDocument, GradedNode};
pub use super::hosts::{HostsDocument, HostsNode};
pub use super::job_end::JobEnd;
pub use super::jobs::{JobsDocument, JobsPrune, StopDocument};
pub use super::lock::{LockReleaseNode, LockStatusNode};
pub use super::logs::LogsEnd;
pub use super::pool::PoolDocument;
pub use super::shell::ShellDocument;
pub use super::status::NodeStatus;
pub use super::up::{UpNode, UpOperation};
pub use crate::bench::report::document::{BenchDirection, BenchDocument, BenchEstimate, BenchFinding, BenchNode};
pub use crate::commands::image::build::ImageBuild;
pub use crate::commands::image::prune::ImagePruneNode;
pub use crate::commands::image::pull::ImagePullNode;
pub use crate::commands::image::push::ImagePushNode;
pub use crate::commands::image::status::ImageStatusNode;
pub use crate::commands::init::document::{FoundMachine, InitDocument, InitNode};
pub use crate::commands::keys::push::KeysPushNode;
pub use crate::commands::keys::rotate::KeysRotate;
pub use crate::commands::keys::status::{KeysStatus, Logins};
pub use crate::commands::pool::pick::PoolPickDocument;
pub use crate::commands::train::dry_run::DryRun;
pub use crate::commands::verify::document::{VerifyDocument, VerifyNode};
pub use crate::document::{Document, End, Failure, FailureDetails, NoDetails, NodeEntry, Nodes, value};
