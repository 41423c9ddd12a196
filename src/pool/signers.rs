//! The file of allowed signers, as `ssh-keygen -Y verify -f` reads it (ssh-keygen(1), "ALLOWED SIGNERS"): who the
//! members are, and with which keys they sign.

use super::signature::NAMESPACE;
use crate::inventory::OWNER;
use crate::text::public_key;
use ssh_key::PublicKey;
use ssh_key::public::KeyData;
use std::ops::RangeInclusive;
use std::time::UNIX_EPOCH;

/// The sizes of RSA keys that signatures are verified with, in bits: smaller ones can be broken, and larger ones take
/// long.
const RSA_SIZES: RangeInclusive<u32> = 2048..=8192;

/// The members of a pool.
#[derive(Debug, Clone, Default)]
pub struct AllowedSigners {
    lines: Vec<Signer>,
    /// The lines that grant nothing, each with its number and the reason.
    pub faults: Vec<(usize, String)>,
}

/// A line: a key, and what it is good for.
#[derive(Debug, Clone)]
struct Signer {
    principals: String,
    /// Patterns of namespaces; `None`: any.
    namespaces: Option<String>,
    /// Seconds since the epoch.
    valid_after: Option<u64>,
    valid_before: Option<u64>,
    key: PublicKey,
}

/// The reason why a key is not one of an owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// No line has the key.
    Unknown,
    /// It is the key of others, with these principals.
    OfAnother(String),
    /// It is the owner's, but not for this purpose or at this time.
    Invalid(String),
}

impl AllowedSigners {
    /// Reads the file. A line that cannot be read, or asks for what hvdctl does not do, grants nothing. `text`: with
    /// U+FFFD for what is no UTF-8.
    pub fn parse(text: &str) -> AllowedSigners {
        let mut signers = AllowedSigners::default();
        // the mark with which some editors begin a file
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        for (line, number) in text.lines().zip(1..) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            match Signer::parse(line) {
                Ok(signer) => signers.lines.push(signer),
                Err(why) => signers.faults.push((number, why)),
            }
        }
        signers
    }

    /// Returns whether no line grants anything.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Checks that a key signs for an owner at a time, in seconds since the epoch.
    ///
    /// # Errors
    /// The reason why it does not.
    pub fn check(&self, owner: &str, key: &KeyData, now: u64) -> Result<(), Refusal> {
        let mut refusal = Refusal::Unknown;
        for signer in self.lines.iter().filter(|signer| signer.key.key_data() == key) {
            if !matches_list(owner, &signer.principals) {
                if refusal == Refusal::Unknown {
                    refusal = Refusal::OfAnother(signer.principals.clone());
                }
                continue;
            }
            match signer.check(now) {
                Ok(()) => return Ok(()),
                Err(why) => refusal = Refusal::Invalid(why),
            }
        }
        Err(refusal)
    }

    /// Returns whether some line has a key, whatever it is good for.
    pub fn has(&self, key: &KeyData) -> bool {
        self.lines.iter().any(|signer| signer.key.key_data() == key)
    }

    /// Returns the owners that sign with a key at a time, as far as the file names them and not only patterns.
    pub fn owners(&self, key: &KeyData, now: u64) -> Vec<String> {
        let usable = self.lines.iter().filter(|signer| signer.key.key_data() == key && signer.check(now).is_ok());
        let mut names: Vec<String> = usable
            .flat_map(|signer| signer.principals.split(','))
            .filter_map(|principal| OWNER.read(principal).ok())
            .collect();
        names.sort();
        names.dedup();
        names
    }
}

impl Signer {
    fn parse(line: &str) -> Result<Signer, String> {
        if line.contains(char::REPLACEMENT_CHARACTER) {
            return Err("it is not UTF-8; save the file as UTF-8".into());
        }
        // as a file .pub has it
        if is_key(line) && line.split_whitespace().nth(1).is_some_and(|word| word.starts_with("AAAA")) {
            return Err("it begins with a key; put the member's name before it".into());
        }
        let (principals, rest) = principals(line)?;
        // as OpenSSH does: a key, or else options before it
        let (options, key) = match is_key(rest) {
            true => ("", rest),
            false => split_options(rest)?,
        };
        let mut signer =
            Signer { principals, namespaces: None, valid_after: None, valid_before: None, key: read_key(key)? };
        for (name, value) in options_of(options)? {
            match (name.to_ascii_lowercase().as_str(), value) {
                ("namespaces", Some(value)) => set(&mut signer.namespaces, value, "namespaces")?,
                ("valid-after", Some(value)) => set(&mut signer.valid_after, time(&value)?, "valid-after")?,
                ("valid-before", Some(value)) => set(&mut signer.valid_before, time(&value)?, "valid-before")?,
                ("cert-authority", None) => return Err("hvdctl does not support certificates (cert-authority)".into()),
                _ => return Err("it has an option that hvdctl does not know".into()),
            }
        }
        if signer.valid_after.zip(signer.valid_before).is_some_and(|(after, before)| before <= after) {
            return Err("valid-before is not later than valid-after".into());
        }
        Ok(signer)
    }

    /// Checks that the key may be used in pools at a time.
    fn check(&self, now: u64) -> Result<(), String> {
        if self.namespaces.as_ref().is_some_and(|namespaces| !matches_list(NAMESPACE, namespaces)) {
            return Err(format!("the key is not for the namespace {NAMESPACE}"));
        }
        if self.valid_after.is_some_and(|after| now < after) {
            return Err("the key is not valid yet (valid-after)".into());
        }
        if self.valid_before.is_some_and(|before| now > before) {
            return Err("the key is no longer valid (valid-before)".into());
        }
        Ok(())
    }
}

fn set<T>(place: &mut Option<T>, value: T, name: &str) -> Result<(), String> {
    if place.replace(value).is_some() { Err(format!("it has {name} twice")) } else { Ok(()) }
}

/// Splits the principals off a line; they may be in double quotes.
fn principals(line: &str) -> Result<(String, &str), String> {
    let missing = || "expected principals and a public key".to_owned();
    let (principals, rest) = match line.strip_prefix('"') {
        Some(quoted) => quoted.split_once('"'),
        None => line.split_once([' ', '\t']),
    }
    .ok_or_else(missing)?;
    if principals.is_empty() {
        return Err(missing());
    }
    Ok((principals.to_owned(), rest.trim_start()))
}

/// Returns whether a text begins with the type of a key.
fn is_key(text: &str) -> bool {
    let name = text.split([' ', '\t']).next().unwrap_or_default();
    ["ssh-", "ecdsa-sha2-", "sk-"].iter().any(|start| name.starts_with(start))
}

fn read_key(text: &str) -> Result<PublicKey, String> {
    let name = text.split([' ', '\t']).next().unwrap_or_default();
    if name.contains("-cert-") {
        return Err("hvdctl does not support certificates".into());
    }
    if is_key(text) && !matches!(name, "ssh-ed25519" | "ssh-rsa") {
        return Err("hvdctl verifies signatures of Ed25519 and RSA keys only".into());
    }
    let key = public_key::parse(text).ok_or("it has no public key")?;
    match key.key_data() {
        KeyData::Ed25519(_) => Ok(key),
        KeyData::Rsa(rsa) if RSA_SIZES.contains(&rsa.key_size()) => Ok(key),
        KeyData::Rsa(_) => {
            let (least, most) = (RSA_SIZES.start(), RSA_SIZES.end());
            Err(format!("hvdctl verifies signatures of RSA keys of {least} to {most} bits only"))
        }
        _ => Err("it has no public key".into()),
    }
}

/// Splits a text at the first space that is not in double quotes.
fn split_options(text: &str) -> Result<(&str, &str), String> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    let is_end = |c: char| {
        let was_escaped = is_escaped;
        is_escaped = c == '\\' && !was_escaped;
        is_quoted ^= c == '"' && !was_escaped;
        !is_quoted && matches!(c, ' ' | '\t')
    };
    let end = text.find(is_end).ok_or("it has no public key")?;
    Ok((&text[..end], text[end..].trim_start()))
}

/// The options of a line, each with its value if it has one.
fn options_of(text: &str) -> Result<Vec<(&str, Option<String>)>, String> {
    let mut options = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(['=', ',']).unwrap_or(rest.len());
        let (name, behind) = rest.split_at(end);
        let value = match behind.strip_prefix("=\"") {
            None => {
                rest = behind;
                None
            }
            Some(quoted) => {
                let (value, behind) = dequoted(quoted).ok_or("a quote is not closed")?;
                rest = behind;
                Some(value)
            }
        };
        options.push((name, value));
        if rest.is_empty() {
            break;
        }
        rest = rest.strip_prefix(',').filter(|rest| !rest.is_empty()).ok_or("its options cannot be read")?;
    }
    Ok(options)
}

/// Returns a text up to its closing quote, and what follows; `\"` stands for a quote.
fn dequoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, c)) = characters.next() {
        match c {
            '"' => return Some((value, &text[at + 1..])),
            '\\' if text[at + 1..].starts_with('"') => {
                value.push('"');
                characters.next();
            }
            c => value.push(c),
        }
    }
    None
}

/// Reads `YYYYMMDDZ`, `YYYYMMDDHHMMZ` or `YYYYMMDDHHMMSSZ` as seconds since the epoch.
fn time(text: &str) -> Result<u64, String> {
    let wrong = || "a time is YYYYMMDDZ or YYYYMMDDHHMM[SS]Z".to_owned();
    let Some(digits) = text.strip_suffix('Z').or_else(|| text.strip_suffix("UTC")) else {
        // OpenSSH takes one without it as local time on the machine that reads the file
        return Err(format!("{}; the Z at the end (UTC) is required", wrong()));
    };
    if !matches!(digits.len(), 8 | 12 | 14) || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong());
    }
    let whole = format!("{digits:0<14}");
    let [year, month, day, hour, minute, second] = [0..4, 4..6, 6..8, 8..10, 10..12, 12..14].map(|part| &whole[part]);
    let time = humantime::parse_rfc3339(&format!("{year}-{month}-{day}T{hour}:{minute}:{second}Z"));
    let since = time.ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    since.map(|since| since.as_secs()).filter(|seconds| *seconds > 0).ok_or_else(wrong)
}

/// Returns whether a text matches a list of patterns separated by commas, as OpenSSH's `match_pattern_list` has it: one
/// of them, and none that begins with `!`.
fn matches_list(text: &str, patterns: &str) -> bool {
    let mut is_match = false;
    for pattern in patterns.split(',') {
        match pattern.strip_prefix('!') {
            Some(pattern) if matches(text.as_bytes(), pattern.as_bytes()) => return false,
            Some(_) => {}
            None => is_match |= matches(text.as_bytes(), pattern.as_bytes()),
        }
    }
    is_match
}

/// Returns whether a text matches a pattern with `*` and `?`. It takes the product of both lengths at most.
fn matches(text: &[u8], pattern: &[u8]) -> bool {
    let (mut at, mut in_pattern, mut star) = (0, 0, None);
    while at < text.len() {
        match pattern.get(in_pattern) {
            Some(b'*') => {
                star = Some((in_pattern, at));
                in_pattern += 1;
            }
            Some(c) if *c == b'?' || *c == text[at] => {
                at += 1;
                in_pattern += 1;
            }
            _ => {
                // the last star takes one more
                let Some((star_at, taken)) = star else { return false };
                star = Some((star_at, taken + 1));
                (at, in_pattern) = (taken + 1, star_at + 1);
            }
        }
    }
    pattern[in_pattern..].iter().all(|c| *c == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ANA: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAILM+rvN+ot98qgEN796jTiQfZfG1KaT0PtFDJ/XFSqti";
    const NOW: u64 = 1_700_000_000;

    fn key() -> KeyData {
        public_key::parse(ANA).unwrap().key_data().clone()
    }

    fn check(line: &str, owner: &str) -> Result<(), Refusal> {
        let signers = AllowedSigners::parse(line);
        assert_eq!(signers.faults, [], "{line}");
        signers.check(owner, &key(), NOW)
    }

    #[test]
    fn lines_as_ssh_keygen_takes_them() {
        for line in [
            format!("ana {ANA}"),
            format!("  bob,ana\t{ANA} a comment"),
            format!("\"ana\" {ANA}"),
            format!("\"ana\"{ANA}"),
            format!("an? {ANA}"),
            format!("\u{feff}ana {ANA}"),
            format!("ana {ANA}\n# \u{fffd}"),
            format!("*,!bob {ANA}"),
            format!("ana namespaces=\"git,hvdctl-pool\" {ANA}"),
            format!("ana NAMESPACES=\"hvd*\",valid-after=\"20231114Z\" {ANA}"),
            format!("ana valid-before=\"20231114221321Z\" {ANA}"),
            format!("ana valid-after=\"202311142213Z\",valid-before=\"20240101UTC\" {ANA}"),
        ] {
            assert_eq!(check(&line, "ana"), Ok(()), "{line}");
        }
        let invalid = |why: &str| Err(Refusal::Invalid(why.to_owned()));
        let line = format!("ana namespaces=\"git\" {ANA}");
        assert_eq!(check(&line, "ana"), invalid("the key is not for the namespace hvdctl-pool"));
        let line = format!("ana valid-before=\"20231114Z\" {ANA}");
        assert_eq!(check(&line, "ana"), invalid("the key is no longer valid (valid-before)"));
        let line = format!("ana valid-after=\"20240101Z\" {ANA}");
        assert_eq!(check(&line, "ana"), invalid("the key is not valid yet (valid-after)"));
        assert_eq!(check(&format!("*,!ana {ANA}"), "ana"), Err(Refusal::OfAnother("*,!ana".into())));
        assert_eq!(check("# nothing\n\n", "ana"), Err(Refusal::Unknown));
        // a second line of the same key
        let two = format!("ana valid-before=\"20200101Z\" {ANA}\nana {ANA}\n");
        assert_eq!(check(&two, "ana"), Ok(()));
    }

    #[test]
    fn a_line_that_is_not_understood_grants_nothing() {
        for (line, why) in [
            ("ana", "expected principals and a public key"),
            ("ana x", "it has no public key"),
            (ANA, "it begins with a key; put the member's name before it"),
            (&format!("ana {ANA} \u{fffd}"), "it is not UTF-8; save the file as UTF-8"),
            ("ana ssh-ed25519 AAAA", "it has no public key"),
            ("ana ssh-dss AAAA", "hvdctl verifies signatures of Ed25519 and RSA keys only"),
            ("ana ecdsa-sha2-nistp256 AAAA", "hvdctl verifies signatures of Ed25519 and RSA keys only"),
            ("ana ssh-ed25519-cert-v01@openssh.com AAAA", "hvdctl does not support certificates"),
        ] {
            assert_eq!(AllowedSigners::parse(line).faults, [(1, why.to_owned())], "{line}");
        }
        for (options, why) in [
            ("cert-authority", "hvdctl does not support certificates (cert-authority)"),
            ("no-touch-required", "it has an option that hvdctl does not know"),
            (
                "valid-after=\"20240101\"",
                "a time is YYYYMMDDZ or YYYYMMDDHHMM[SS]Z; the Z at the end (UTC) is required",
            ),
            ("valid-after=\"20241301Z\"", "a time is YYYYMMDDZ or YYYYMMDDHHMM[SS]Z"),
            ("valid-after=\"2024Z\"", "a time is YYYYMMDDZ or YYYYMMDDHHMM[SS]Z"),
            ("valid-after=\"20240102Z\",valid-before=\"20240101Z\"", "valid-before is not later than valid-after"),
            ("namespaces=\"a\",namespaces=\"b\"", "it has namespaces twice"),
            ("namespaces=a", "its options cannot be read"),
            ("namespaces=\"a\"x", "its options cannot be read"),
            ("namespaces=\"a\",", "its options cannot be read"),
        ] {
            let signers = AllowedSigners::parse(&format!("# members\nana {options} {ANA}\n"));
            assert_eq!(signers.faults, [(2, why.to_owned())], "{options}");
            assert!(signers.is_empty());
        }
    }

    #[test]
    fn the_owner_of_a_key_is_named_and_not_a_pattern() {
        let owners = |text: &str| AllowedSigners::parse(text).owners(&key(), NOW);
        assert_eq!(owners(&format!("ana,ana@example.com {ANA}")), ["ana", "ana@example.com"]);
        assert_eq!(owners(&format!("*@example.com,!x,a?a {ANA}\nana {ANA}\nana {ANA}")), ["ana"]);
        assert_eq!(owners(&format!("ana valid-before=\"20200101Z\" {ANA}")), [""; 0]);
    }

    proptest! {
        #[test]
        fn patterns_match_as_regular_expressions_do(text in "[abc]{0,8}", pattern in "[abc*?]{0,8}") {
            let expression = pattern.replace('*', ".*").replace('?', ".");
            let expected = regex::Regex::new(&format!("^(?:{expression})$")).unwrap().is_match(&text);
            prop_assert_eq!(matches(text.as_bytes(), pattern.as_bytes()), expected);
        }

        #[test]
        fn any_text_is_read(text in "(ana|\\PC|\"|,|=|\\\\| |namespaces|valid-after|ssh-ed25519){0,20}") {
            let signers = AllowedSigners::parse(&text);
            prop_assert!(signers.check("ana", &key(), NOW).is_err());
            prop_assert!(signers.faults.iter().all(|(_, why)| why.is_ascii()));
        }
    }
}
