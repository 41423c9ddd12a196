//! `hvdctl stop`.

use super::{Context, Outcome, output, unless_signalled};
use crate::cli::Stop;
use crate::error::{Error, exit};
use crate::job::list::Newest;
use crate::job::manage;
use crate::job::record::State;
use crate::text::nodeset;

/// `stop`.
pub async fn run(options: &Stop, context: Context) -> Result<Outcome, Error> {
    let Context { target, events, cancel, .. } = context;
    unless_signalled(&cancel, async {
        let runs = manage::list(&target, &events).await?;
        let job = match (&options.job, runs.jobs.iter().find(|job| !job.is_over())) {
            // without a word the newest that is under way; one that has ended needs no end
            (None, Some(job)) => job,
            // of several of a name one that is under way
            (Some(word), _) => match runs.jobs.iter().find(|job| !job.is_over() && job.name == *word) {
                Some(job) => job,
                None => runs.find(Some(word), Newest::Any)?,
            },
            (None, None) => runs.find(None, Newest::Any)?,
        };
        if job.is_over() && job.ended.is_some() {
            let text = format!("the job {} has ended already\n", job.id);
            let (job, state) = (job.id.clone(), job.state);
            let document = output::Stop { ok: true, job, changed: false, state, silent: Vec::new() };
            return Ok(Outcome::new(exit::OK, text, &document, Vec::new()));
        }
        let ending = manage::stop(&target, &runs, job, &events).await?;
        Ok(stopped(&job.id, ending.state(), ending.silent))
    })
    .await
}

pub(super) fn stopped(id: &str, state: State, silent: Vec<String>) -> Outcome {
    let mut text = format!("the job {id} is over\n");
    let ok = silent.is_empty();
    if !ok {
        let who = nodeset::fold(&silent);
        text.push_str(&format!("{who} did not answer: ranks may be left there (hvdctl doctor --fix)\n"));
    }
    let document = output::Stop { ok, job: id.to_owned(), changed: true, state: Some(state), silent };
    Outcome::new(if ok { exit::OK } else { exit::PARTLY }, text, &document, Vec::new())
}
