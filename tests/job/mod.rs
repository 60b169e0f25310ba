//! Jobs that run, on the memory broker: in which order things become durable, how epochs follow each other and time passes,
//! how a job ends.

mod cluster;
mod drift;
mod durability;
mod durable;
mod epochs;
mod health;
mod pair;
mod queue;
mod redelivery;
mod stop;
pub(crate) mod support;
mod time;
mod topics;
