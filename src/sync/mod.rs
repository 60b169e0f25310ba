//! The synchronization job: brings together the records of two to eight sides that have the same key.
//!
//! | what happens to a key | what comes of it |
//! |---|---|
//! | every side is present for the first time | one [`Output::Joined`]; the key is marked |
//! | a side has a record already | the newer one counts ([`Duplicates::Last`]) and starts its deadline anew |
//! | a record comes to a marked key | it is dropped as duplicate until [`Options::remember`] has passed since the join |
//! | the earliest deadline of its records passes | one [`Output::Delayed`] with the sides that are present |
//! | the missing sides come after that | a join marked late ([`Late::Join`]), or they are dropped ([`Late::Drop`]) |
//! | `remember` passes after the delay | its records expire, the key is forgotten |
//! | all input ends | keys that wait are delayed at once and forgotten ([`AtEnd::Delay`]) |
//!
//! A deadline is the record's base time plus the window of its side, not before the clock at its arrival; it has passed when
//! the clock is beyond it. Within an epoch a split's candidate is its last record, and the largest (timestamp, split) among
//! the candidates of a side wins; arrivals come before expiries, so the match wins. After every epoch each record that
//! came is in one place: joined, expired, pending or dropped for a reason ([`Counts`]).
//!
//! [`synchronize`] is one operator whose state is one differential trace: no batcher, no feedback, no second copy. Per epoch
//! it sorts the records, merges in the keys that are due, looks all of them up, steps them and writes one batch. The flow:
//! [`record`](Record) → `operator` → `synchronizer` (one epoch) → `pass` → `step` (one key; the rules) → [`batch`](StateBatch) (the
//! trace), with `store` (`slab` for what waits, `finished` for the cards of finished keys) outside of it and `wheel` for deadlines.

mod batch;
mod card;
mod conserve;
mod counts;
mod details;
pub mod document;
mod finished;
pub mod json;
mod kept;
mod key;
mod number;
mod operator;
mod options;
mod pass;
mod record;
mod restore;
mod slab;
mod state;
mod step;
mod store;
mod synchronizer;
pub mod topics;
mod wheel;

pub use batch::{Diff, StateBatch, StateCursor, StateMerger, StateSpine};
pub use conserve::{Tally, Totals};
pub use counts::Counts;
pub use details::{Detail, Details, SideDetail, WaitDetail};
pub(crate) use kept::{Item, KEYS, Kept, KeptCodec, WaitTimes, finished_as};
pub use key::{Field, Key, KeyBuilder, KeyHash, KeyTypes};
pub use operator::{Synchronized, synchronize, synchronize_durably};
pub use options::{AtEnd, Duplicates, Late, MAX_SIDES, Options};
pub use record::{Entry, Output, Payload, Record, Value};
pub(crate) use state::MAX_TIME;
pub use state::{Phase, State};
