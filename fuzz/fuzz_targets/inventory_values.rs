//! See `properties.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| hvdctl_fuzz::inventory_values(data));
