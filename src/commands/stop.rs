//! `hvdctl stop`.

use super::context::Context;
use super::{Outcome, output};
use crate::cli::Stop;
use crate::error::{Error, exit};
use crate::job::list::Newest;
use crate::job::manage;
use crate::job::record::State;
use crate::text::nodeset;

/// `stop`.
pub async fn run(options: &Stop, context: &Context) -> Result<Outcome, Error> {
    let Context { target, events, .. } = context;
    let jobs = manage::list(target, events).await?;
    // a running job takes precedence over an ended job of the same name
    let wanted = options.job.as_deref();
    let running = jobs.jobs.iter().find(|job| !job.is_over() && wanted.is_none_or(|name| job.name == name));
    let job = running.map_or_else(|| jobs.find(wanted, Newest::Any), Ok)?;
    if job.is_over() && job.ended.is_some() {
        let (id, state) = (job.id.clone(), job.state);
        let document = output::Stop { ok: true, job: id, changed: false, state, silent: Vec::new() };
        return Ok(Outcome::ok(format!("job {} has already ended\n", job.id), &document));
    }
    let ending = manage::stop(&jobs, job, events).await?;
    Ok(stopped(&job.id, ending.state(), ending.silent))
}

pub(super) fn stopped(id: &str, state: State, silent: Vec<String>) -> Outcome {
    let mut text = format!("job {id} has ended\n");
    let ok = silent.is_empty();
    if !ok {
        let nodes = nodeset::fold(&silent);
        text.push_str(&format!("no answer from {nodes}: ranks may still run there (hvdctl doctor --fix)\n"));
    }
    let document = output::Stop { ok, job: id.to_owned(), changed: true, state: Some(state), silent };
    Outcome::new(if ok { exit::OK } else { exit::PARTLY }, text, &document, &[])
}
