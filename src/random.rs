//! Random numbers of the system, which no other program can guess.

/// Returns a secret: 128 bits as 32 hexadecimal digits.
///
/// # Panics
/// If the system has no random numbers: then no key and no connection is safe either.
pub fn token() -> String {
    id() + &id()
}

/// Returns a name that nothing else has: 64 bits as 16 hexadecimal digits.
///
/// # Panics
/// As [`token`].
pub fn id() -> String {
    format!("{:016x}", number())
}

/// Returns a random number below a limit, which is not 0.
///
/// # Panics
/// As [`token`].
pub fn below(limit: u64) -> u64 {
    number() % limit
}

fn number() -> u64 {
    getrandom::u64().expect("the system has random numbers")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_differ_and_numbers_stay_below_their_limit() {
        assert_eq!(token().len(), 32);
        assert_ne!(token(), token());
        assert!((0..1000).all(|_| below(3) < 3) && (0..1000).any(|_| below(3) == 2));
    }
}
