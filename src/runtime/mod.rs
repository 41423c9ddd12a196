//! The containers in which ranks live, and the Docker Engine that runs them. The only user of `bollard`.

pub mod container;
pub mod docker;
pub mod pull;
pub mod spec;
