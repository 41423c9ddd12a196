//! The size of a job as `train` is given it.

use super::placement::RankCount;
use std::num::NonZeroU32;
use std::str::FromStr;

/// `-np` of `train`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobSize {
    /// The number of all ranks.
    Ranks(RankCount),
    /// `NAME=N,…`: the number of ranks of each of these roles.
    Roles(Vec<(String, u32)>),
}

impl FromStr for JobSize {
    type Err = String;

    fn from_str(text: &str) -> Result<JobSize, String> {
        if !text.contains('=') {
            return text.parse().map(JobSize::Ranks);
        }
        let mut roles: Vec<(String, u32)> = Vec::new();
        for part in text.split(',') {
            let (name, ranks) = part.split_once('=').unwrap_or((part, ""));
            let ranks: NonZeroU32 = ranks
                .parse()
                .map_err(|_| format!("{part:?} is not NAME=N, a role and a whole number of at least 1"))?;
            if roles.iter().any(|(other, _)| other == name) {
                return Err(format!("the role {name} is in it twice"));
            }
            roles.push((name.to_owned(), ranks.get()));
        }
        Ok(JobSize::Roles(roles))
    }
}

impl JobSize {
    /// Returns the number of all ranks, if it is that.
    pub fn ranks(&self) -> Option<RankCount> {
        match self {
            JobSize::Ranks(ranks) => Some(*ranks),
            JobSize::Roles(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_a_number_or_one_for_each_role() {
        assert_eq!("2".parse(), Ok(JobSize::Ranks(RankCount::exactly(2))));
        assert_eq!("1:2".parse(), Ok(JobSize::Ranks(RankCount { min: Some(1), max: 2 })));
        assert_eq!("a=8,b-c=4".parse(), Ok(JobSize::Roles(vec![("a".into(), 8), ("b-c".into(), 4)])));
        for (text, words) in [
            ("0", "a whole number"),
            ("a=0", "\"a=0\" is not NAME=N"),
            ("a=1,b", "\"b\" is not NAME=N"),
            ("a=1:2", "\"a=1:2\" is not NAME=N"),
            ("a=1,", "\"\" is not NAME=N"),
            ("a=1,a=2", "the role a is in it twice"),
        ] {
            let error = text.parse::<JobSize>().unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }
}
