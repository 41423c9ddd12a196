//! The job that a command is about.

use super::list::Job;

/// The job that is meant if none is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Newest {
    /// The newest.
    Any,
    /// The newest that is not a check, as `verify` makes them; else the newest check.
    Program,
    /// The newest that has a project.
    Project,
}

/// Finds a job by its id, the beginning of its id, or its name (the newest of that name); without any of these the
/// newest of its kind.
///
/// # Errors
/// A message, if there is none, or several begin so.
pub fn find<'a>(jobs: &'a [Job], name: Option<&str>, newest: Newest) -> Result<&'a Job, String> {
    let Some(name) = name else {
        return match newest {
            Newest::Any => jobs.first(),
            Newest::Program => jobs.iter().find(|job| !job.is_check).or(jobs.first()),
            Newest::Project => jobs.iter().find(|job| job.project.is_some()),
        }
        .ok_or_else(|| match newest {
            Newest::Project => "there is no job with a project".to_owned(),
            Newest::Any | Newest::Program => "there are no jobs".to_owned(),
        });
    };
    if let Some(job) = jobs.iter().find(|job| job.id == name).or(jobs.iter().find(|job| job.name == name)) {
        return Ok(job);
    }
    let matching: Vec<&Job> = jobs.iter().filter(|job| job.id.starts_with(name)).collect();
    match matching[..] {
        [job] => Ok(job),
        [] => Err(format!("there is no job {name}")),
        _ => {
            let ids: Vec<&str> = matching.iter().take(5).map(|job| job.id.as_str()).collect();
            Err(format!("{name} is ambiguous: {} jobs match ({})", matching.len(), ids.join(", ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::list::tests::{lines, listed};

    #[test]
    fn a_job_is_found_by_id_by_its_beginning_and_by_name() {
        let text =
            [("20261121-1", 1.0), ("20261121-2", 2.0), ("20261122-1", 3.0)].map(|(id, t)| lines(id, t, 0)).concat();
        let jobs = listed("lab", &[("a", &text)], &[], 5000.0);
        let found = |word| find(&jobs, word, Newest::Any).map(|job| job.id.as_str());
        assert_eq!(found(None), Ok("20261122-1"));
        assert_eq!(found(Some("20261121-1")), Ok("20261121-1"));
        assert_eq!(found(Some("20261122")), Ok("20261122-1"));
        assert_eq!(found(Some("digits")), Ok("20261122-1"));
        assert_eq!(found(Some("20261121")), Err("20261121 is ambiguous: 2 jobs match (20261121-2, 20261121-1)".into()));
        assert_eq!(found(Some("x")), Err("there is no job x".into()));
        assert_eq!(find(&[], None, Newest::Any).unwrap_err(), "there are no jobs");
    }

    #[test]
    fn the_newest_of_its_kind_is_meant() {
        let text = ["p", "r", "v"].map(|id| lines(id, 1.0, 0)).concat();
        let mut jobs = listed("lab", &[("a", &text)], &[], 5000.0);
        jobs.sort_by_key(|job| std::cmp::Reverse(job.id.clone()));
        // v is a check, r a program of the image
        (jobs[0].is_check, jobs[0].project, jobs[1].project) = (true, None, None);
        let found = |newest| find(&jobs, None, newest).unwrap().id.as_str();
        assert_eq!([Newest::Any, Newest::Program, Newest::Project].map(found), ["v", "r", "p"]);
        assert_eq!(find(&jobs[..1], None, Newest::Program).unwrap().id, "v", "there is no other");
        assert_eq!(find(&jobs[..2], None, Newest::Project).unwrap_err(), "there is no job with a project");
    }
}
