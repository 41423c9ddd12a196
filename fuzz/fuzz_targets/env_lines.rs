//! See `properties.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| hvdctl_fuzz::env_lines(data));
