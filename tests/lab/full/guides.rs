//! Guides whose commands take minutes.

use crate::guides::follow;
use crate::state::{FULL_IMAGE, Lab};

#[test]
fn the_guide_to_images() {
    follow("images.md", &Lab::up_with(FULL_IMAGE));
}

#[test]
fn the_guide_to_a_queue() {
    follow("queue.md", &Lab::up_with(FULL_IMAGE));
}

#[test]
fn the_guide_to_machines_anywhere() {
    follow("anywhere.md", &Lab::up_with(FULL_IMAGE));
}
