//! Names that Kubernetes takes: labels of RFC 1123 that begin with a letter, since services are named after jobs (RFC
//! 1035).

use crate::text::digest::hex;
use sha2::{Digest, Sha256};

/// The most characters of a label.
const LONGEST: usize = 63;

/// The digits of the hash in a shortened name.
const HASH: usize = 8;

/// Returns a name as Kubernetes takes it. `suffix`: the characters that it adds for a pod. Different names that are
/// changed stay different, by a hash of what they were.
pub(super) fn label(name: &str, suffix: usize) -> String {
    let most = LONGEST - suffix.min(LONGEST - HASH - 2);
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let letters: String = name.chars().map(plain).collect();
    let trimmed = letters.trim_matches('-');
    if trimmed == name && trimmed.starts_with(|c: char| c.is_ascii_lowercase()) && name.len() <= most {
        return name.to_owned();
    }
    let trimmed = match trimmed.starts_with(|c: char| c.is_ascii_lowercase()) {
        true => trimmed.to_owned(),
        false => format!("job-{trimmed}"),
    };
    // only that it is lower-case changes the name of hardly any other job
    let is_plain = name.eq_ignore_ascii_case(&trimmed.replace('-', "_")) || name.eq_ignore_ascii_case(&trimmed);
    if is_plain && trimmed.len() <= most {
        return trimmed;
    }
    let hash = hex(&Sha256::digest(name)[..HASH / 2]);
    let kept: String = trimmed.chars().take(most - HASH - 1).collect();
    format!("{}-{hash}", kept.trim_end_matches('-'))
}

/// Returns the key of a ConfigMap for a file: its path if that is one. `taken`: the keys of the other files.
pub(super) fn key(path: &str, taken: &[String]) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
    let plain: String = path.chars().map(plain).take(200).collect();
    let plain = if plain.starts_with("..") || plain == "." { format!("_{plain}") } else { plain };
    let numbered = (2..).map(|number| format!("{plain}-{number}"));
    std::iter::once(plain.clone()).chain(numbered).find(|key| !taken.contains(key)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_good_name_stays_and_others_become_one() {
        for (name, expected) in
            [("digits", "digits"), ("a-1", "a-1"), ("digits_ddp", "digits-ddp"), ("Digits", "digits")]
        {
            assert_eq!(label(name, 10), expected);
        }
        // with a hash of what they were
        for (name, expected) in [("v1.2", "v1-2-"), ("4gpus", "job-4gpus-"), ("größe", "gr--e-"), ("..", "job-")] {
            let found = label(name, 10);
            assert!(found.starts_with(expected) && found.len() >= expected.len() + HASH - 1, "{name}: {found}");
        }
        let long = label(&"a".repeat(64), 20);
        assert_eq!((long.len(), long != label(&"a".repeat(65), 20)), (43, true), "{long}");
    }

    #[test]
    fn keys_are_those_of_a_config_map_and_differ() {
        let mut taken = Vec::new();
        for path in ["train.py", "a/b.py", "a_b.py", "..x", "ö.py"] {
            taken.push(key(path, &taken));
        }
        assert_eq!(taken, ["train.py", "a_b.py", "a_b.py-2", "_..x", "_.py"]);
    }

    proptest! {
        #[test]
        fn names_are_labels_and_differ(a in ".{1,90}", b in ".{1,90}", suffix in 0usize..30) {
            let name = label(&a, suffix);
            prop_assert!(!name.is_empty() && name.len() + suffix <= LONGEST, "{}", name);
            prop_assert!(name.starts_with(|c: char| c.is_ascii_lowercase()) && !name.ends_with('-'), "{}", name);
            prop_assert!(name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'), "{}", name);
            let same = a.to_lowercase().replace('_', "-") == b.to_lowercase().replace('_', "-");
            prop_assert!(same || label(&b, suffix) != name);
        }
    }
}
