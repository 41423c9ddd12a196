//! `hvdctl pool`.

pub mod pick;

use crate::cluster::operator::now;
use crate::commands::Outcome;
use crate::commands::shared::context::Context;
use crate::error::Error;
use crate::inventory::Pool;
use crate::pool::contents::PoolContents;
use crate::pool::format::PoolNode;
use crate::pool::pick::NO_HOST_KEY;
use crate::pool::verification::{FileState, PoolFile};
use crate::text::result::ResultText;
use crate::text::table::{Table, detail, key, text};
use crate::text::units::age;
use schemars::JsonSchema;
use serde::Serialize;

/// `pool`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct PoolDocument {
    /// The files of the pool: valid ones first.
    pub files: Vec<PoolEntry>,
    /// True if the pool has more files than are read.
    pub is_cut: bool,
}

/// A file of a pool.
#[derive(Debug, Serialize, JsonSchema)]
pub struct PoolEntry {
    /// The name of the file.
    pub file: String,
    /// The state of the file. Only a `valid` one is ever picked.
    pub state: FileState,
    /// The reason why it is not valid, or null.
    pub reason: Option<String>,
    /// The node that its owner has signed; null if nothing in it can be trusted.
    pub node: Option<PoolNode>,
}

/// Returns the pool of the inventory.
///
/// # Errors
/// If it has none.
pub(in crate::commands) fn pool_of(context: &Context) -> Result<&Pool, Error> {
    let none = || Error::usage("the inventory has no [pool]", "docs/reference/pool.md has the steps to set one up");
    context.target.inventory.pool.as_ref().ok_or_else(none)
}

/// `pool`.
pub async fn list(context: &Context) -> Result<Outcome, Error> {
    let PoolContents { files, is_cut, .. } = PoolContents::read(pool_of(context)?, context.site()).await?;
    Ok(listed(files, is_cut, now() as u64))
}

pub(in crate::commands) fn listed(files: Vec<PoolFile>, is_cut: bool, now: u64) -> Outcome {
    let text: ResultText = match files.is_empty() {
        true => "the pool has no nodes; hvdctl grade --publish adds yours\n".into(),
        false => {
            let rows = files.iter().map(|file| row(file, now));
            let columns = [
                text("OWNER"),
                text("NODE"),
                key("GRADE"),
                detail(1, "SLOTS"),
                detail(2, "PUBLISHED"),
                text("KIND"),
                text("STATE"),
            ];
            Table::new(columns, rows).into()
        }
    };
    let entry = |PoolFile { name, state, reason, node, .. }: PoolFile| {
        let reason = Some(reason).filter(|reason| !reason.is_empty());
        PoolEntry { file: name, state, reason, node }
    };
    Outcome::ok(text, PoolDocument { files: files.into_iter().map(entry).collect(), is_cut })
}

fn row(file: &PoolFile, now: u64) -> Vec<String> {
    let has_no_key = file.node.as_ref().is_some_and(|node| node.host_key.is_none());
    let state = match file.state {
        FileState::Valid if has_no_key => format!("valid, not picked: {NO_HOST_KEY}"),
        FileState::Valid => "valid".to_owned(),
        state => format!("{state}: {}", file.reason),
    };
    let Some(node) = &file.node else {
        return vec!["–".into(), file.name.clone(), "–".into(), "–".into(), "–".into(), "–".into(), state];
    };
    let PoolNode { owner, node, grade, slots, published, kind, .. } = node;
    let published = format!("{} ago", age(now.saturating_sub(*published)));
    vec![owner.clone(), node.clone(), grade.to_string(), slots.to_string(), published, kind.to_string(), state]
}
