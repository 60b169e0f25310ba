//! The promises of [`Source`](crate::source::Source), [`Reader`](crate::source::Reader),
//! [`Committer`](crate::source::Committer), [`Sink`](crate::sink::Sink) and [`Writer`](crate::sink::Writer), one public
//! function each, to be run against every adapter and its real broker.
//!
//! An adapter's test implements [`Harness`]: it makes topics, and it produces and reads back by a client that is not the
//! adapter. [`run`] then goes through [`PROMISES`], prints which were kept and which were skipped and why, and returns the
//! counts; the test fails if a promise is broken or if fewer were kept than it states. So a promise cannot be lost by accident:
//!
//! ```no_run
//! # use syncline::conformance::{self, Harness};
//! # fn test(mut harness: impl Harness) {
//! let report = conformance::run(&mut harness, &mut std::io::stdout());
//! assert!(report.broken.is_empty(), "{report:?}");
//! assert!(report.kept >= 24, "promises were lost: {report:?}");
//! # }
//! ```

use std::fmt;
use std::io::Write;
use std::time::Duration;

use bytes::Bytes;

use crate::epoch::{Clock, SystemClock};
use crate::message::{Headers, Offset};
use crate::sink::NewSink;
use crate::source::NewSource;

mod probe;
pub mod queue;
pub mod sink;
pub mod source;
pub mod values;

/// How long the suite waits for what must come: long enough for a real broker on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A message as the independent client of a harness writes and reads it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Produced {
    /// The key, where the broker has keys.
    pub key: Option<Bytes>,
    /// The value; `None` is a tombstone.
    pub value: Option<Bytes>,
    /// In milliseconds since the Unix epoch, where the broker keeps the producer's timestamp.
    pub timestamp: Option<u64>,
    /// Headers, where the broker has headers.
    pub headers: Headers,
}

impl Produced {
    /// A message with a value and nothing else.
    pub fn value(value: impl Into<Bytes>) -> Self {
        Produced { value: Some(value.into()), ..Produced::default() }
    }
}

/// What a broker, an adapter or a harness may lack, so that promises about it are skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ability {
    /// There is a source.
    Source,
    /// The source can be read from any offset: [`Replay::Seek`](crate::source::Replay::Seek).
    Seek,
    /// The source delivers again what was not committed: [`Replay::Redeliver`](crate::source::Replay::Redeliver).
    Redelivery,
    /// Messages have keys.
    Keys,
    /// Messages have headers.
    Headers,
    /// Messages have the timestamps of their producers, and positions can be found by them.
    Timestamps,
    /// Messages may be without a value.
    Tombstones,
    /// Values may hold any bytes, line ends too.
    Binary,
    /// The broker keeps the offsets that a group committed, and [`Harness::committed`] can tell them.
    Groups,
    /// [`Harness::add_split`] can add a split to a topic.
    LateSplits,
    /// [`Harness::interrupt`] can break the connections of all clients.
    Interruption,
    /// A topic that was never made can be told from an empty one.
    UnknownTopic,
    /// A value of 8 MiB can be produced and read.
    LargeValues,
    /// There is a sink.
    Sink,
    /// The sink can publish what an earlier run prepared, and keeps its order.
    Outbox,
    /// The sink is [`Guarantee::Transactional`](crate::sink::Guarantee::Transactional): marks and fencing.
    Transactions,
}

/// What the suite needs from the test of an adapter. Trouble in the harness itself may panic: it is a test.
pub trait Harness {
    /// What is tested, such as `memory: (log)`.
    fn name(&self) -> &str;

    /// Why this cannot be asked for, or `None` if it can. The reason is printed beside every promise that is skipped for it.
    fn lacks(&self, ability: Ability) -> Option<&'static str>;

    /// Makes a topic that was never there, with this many splits (of a queue: links), and returns its name.
    fn topic(&mut self, splits: u32) -> String;

    /// Appends messages to a split of a topic, in order, by a client that is not the adapter; of a queue to the queue.
    /// Returns when the broker has them.
    fn produce(&mut self, topic: &str, split: u32, messages: &[Produced]);

    /// Reads everything that is visible in a topic now, by a client that is not the adapter. Messages of a split are in order.
    fn read_back(&mut self, topic: &str) -> Vec<Produced>;

    /// A source of the topic through the adapter. `group` is the name to commit under.
    fn source(&mut self, topic: &str, group: &str) -> NewSource;

    /// A sink through the adapter, whose entities will be topics of [`Harness::topic`]. `group` is the name of the job.
    fn sink(&mut self, group: &str) -> NewSink;

    /// What the broker has as the committed offset. Not asked without [`Ability::Groups`].
    fn committed(&mut self, topic: &str, split: u32, group: &str) -> Option<Offset>;

    /// Adds a split behind the others of a topic. Not asked without [`Ability::LateSplits`].
    fn add_split(&mut self, topic: &str);

    /// Breaks the connections of all clients; the broker comes back by itself. Not asked without [`Ability::Interruption`].
    fn interrupt(&mut self);
}

/// What came of a promise: nothing, or why it is broken.
pub type Verdict = Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// One promise.
#[derive(Clone, Copy)]
pub struct Promise {
    /// The promise in words, as the name of its function.
    pub name: &'static str,
    /// What it needs; if the harness lacks any of it, the promise is skipped.
    pub needs: &'static [Ability],
    /// Tries it.
    pub check: fn(&mut dyn Harness) -> Verdict,
}

macro_rules! promises {
    ($($module:ident :: $name:ident [$($ability:ident),*])*) => {
        &[$(Promise { name: stringify!($name), needs: &[$(Ability::$ability),*], check: $module::$name }),*]
    };
}

/// Every promise, and what it needs.
pub const PROMISES: &[Promise] = promises! {
    source::the_name_is_fixed [Source]
    source::splits_are_the_same_for_every_source [Source]
    source::an_unknown_topic_is_not_found [Source, UnknownTopic]
    source::resolve_gives_every_split_a_number_and_may_be_repeated [Source]
    source::earliest_reads_everything_in_order [Source, Seek]
    source::latest_reads_only_what_comes_after [Source, Seek]
    source::a_timestamp_is_found_or_refused [Source, Seek]
    source::an_exact_position_is_taken_as_it_is [Source, Seek]
    source::offsets_are_next_positions [Source, Seek]
    source::any_offset_can_be_read_from [Source, Seek]
    source::reading_ends_at_until [Source, Seek]
    source::nothing_to_read_below_until_ends_at_once [Source, Seek]
    values::values_survive [Source]
    values::binary_values_survive [Source, Binary]
    values::keys_survive [Source, Keys]
    values::headers_survive [Source, Headers]
    values::timestamps_survive [Source, Timestamps]
    values::tombstones_survive [Source, Tombstones]
    values::large_values_survive [Source, LargeValues]
    source::caught_up_is_said_and_said_again [Source]
    source::a_backlog_is_not_caught_up [Source, Seek]
    source::a_read_ends_in_bounded_time [Source]
    source::a_new_message_ends_the_wait [Source]
    source::a_batch_is_bounded [Source, Seek]
    source::a_paused_split_is_silent_and_loses_nothing [Source, Seek]
    source::a_removed_split_is_silent [Source, Seek]
    source::a_reader_without_splits_takes_one_later [Source, Seek]
    source::a_late_split_is_found_and_read [Source, Seek, LateSplits]
    source::the_backlog_is_counted_or_not_said [Source]
    source::a_broken_connection_loses_nothing [Source, Interruption]
    source::a_commit_may_be_repeated_and_skipped [Source]
    source::a_commit_is_where_the_next_run_starts [Source, Seek, Groups]
    queue::what_was_not_committed_is_delivered_again [Source, Redelivery]
    queue::what_was_committed_is_gone [Source, Redelivery]
    queue::readers_compete [Source, Redelivery]
    queue::a_broken_connection_delivers_again [Source, Redelivery, Interruption]
    queue::offsets_go_on_from_where_they_were [Source, Redelivery]
    sink::nothing_is_visible_before_publish [Sink]
    sink::publish_shows_exactly_its_range [Sink]
    sink::the_next_range_is_written_while_one_waits [Sink]
    sink::an_empty_range_can_be_published [Sink]
    sink::a_repeated_publish_keeps_the_guarantee [Sink]
    sink::a_new_run_publishes_what_was_prepared [Sink, Outbox]
    sink::every_entity_gets_its_own_records [Sink]
    sink::keys_are_written [Sink, Keys]
    sink::headers_are_written [Sink, Headers]
    sink::an_abandoned_range_is_never_seen [Sink]
    sink::writers_of_all_slots_are_heard [Sink]
    sink::published_is_a_mark_that_lasts [Sink, Transactions]
    sink::what_is_below_the_mark_is_not_written_again [Sink, Outbox, Transactions]
    sink::an_older_run_is_fenced [Sink, Transactions]
};

/// What came of all promises.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// How many promises were tried and kept.
    pub kept: usize,
    /// Which were skipped, and why.
    pub skipped: Vec<(&'static str, &'static str)>,
    /// Which were broken, and how.
    pub broken: Vec<(&'static str, String)>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} promises kept, {} skipped, {} broken", self.kept, self.skipped.len(), self.broken.len())
    }
}

/// Tries every promise with the harness and writes one line for each to `out`.
pub fn run(harness: &mut dyn Harness, out: &mut dyn Write) -> Report {
    let mut report = Report::default();
    let clock = SystemClock::new();
    let mut say = |text: fmt::Arguments<'_>| {
        // A closed output is no reason to stop trying promises.
        let _ = writeln!(out, "{text}");
    };
    say(format_args!("promises of {}", harness.name()));
    for promise in PROMISES {
        if let Some(reason) = promise.needs.iter().find_map(|ability| harness.lacks(*ability)) {
            say(format_args!("  skipped  {}: {reason}", promise.name));
            report.skipped.push((promise.name, reason));
            continue;
        }
        let start = clock.monotonic();
        match (promise.check)(harness) {
            Ok(()) => {
                let took = (clock.monotonic() - start).as_millis();
                say(format_args!("  kept     {} ({took} ms)", promise.name));
                report.kept += 1;
            }
            Err(error) => {
                say(format_args!("  BROKEN   {}: {error}", promise.name));
                report.broken.push((promise.name, error.to_string()));
            }
        }
    }
    say(format_args!("{report}"));
    report
}
