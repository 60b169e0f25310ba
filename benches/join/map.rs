//! The yardstick: the same synchronization, written by hand for one purpose: a hash map, lists of timers, a slab.
//!
//! What it does as the crate's operator does: the hash of 128 bits and the comparison of keys on a match, what wins within an
//! epoch, deadlines, delays, late joins, marks, and payloads that leave the read buffer when they start to wait. What it
//! leaves out: a state that anything else can read (arrangement, compaction), what is known of a finished key, the oldest
//! record that waits, several splits of a side, options, keys whose hashes collide.

use std::collections::hash_map::Entry as Place;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

use bytes::Bytes;
use differential_dataflow::hashable::Hashable;
use syncline::dataflow::Tick;
use syncline::epoch::Epoch;
use syncline::message::Reason;
use syncline::sync::{Counts, Entry, Key, KeyHash, Output, Payload, Record};
use timely::container::CapacityContainerBuilder;
use timely::dataflow::Stream;
use timely::dataflow::channels::pact::{Exchange, Pipeline};
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::OutputBuilder;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;

/// The hash of a key is one already.
#[derive(Default)]
struct Same(u64);

impl Hasher for Same {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _bytes: &[u8]) {
        unreachable!("keys are hashed to a u64")
    }
    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

enum State<const N: usize> {
    Open { sides: u8, delayed: bool, deadline: u64, slots: [u32; N] },
    Done { until: u64 },
}

struct Known<const N: usize> {
    key: Bytes,
    state: State<N>,
}

/// Records that wait.
#[derive(Default)]
struct Slab {
    entries: Vec<Option<(u64, Entry<Bytes>)>>,
    free: Vec<u32>,
}

impl Slab {
    fn insert(&mut self, deadline: u64, mut entry: Entry<Bytes>) -> u32 {
        entry.payload.detach();
        match self.free.pop() {
            Some(slot) => {
                self.entries[slot as usize] = Some((deadline, entry));
                slot
            }
            None => {
                self.entries.push(Some((deadline, entry)));
                self.entries.len() as u32 - 1
            }
        }
    }

    fn get(&mut self, slot: u32) -> &mut (u64, Entry<Bytes>) {
        self.entries[slot as usize].as_mut().expect("a slot that is named is full")
    }

    fn remove(&mut self, slot: u32) -> Entry<Bytes> {
        self.free.push(slot);
        self.entries[slot as usize].take().expect("a slot that is named is full").1
    }
}

struct Operator<const N: usize> {
    window: u64,
    remember: u64,
    map: HashMap<KeyHash, Known<N>, BuildHasherDefault<Same>>,
    slab: Slab,
    timers: BTreeMap<u64, Vec<KeyHash>>,
    /// Keys that all sides are present of; joined when the epoch is over.
    full: Vec<Key>,
    pending: u64,
}

const COLLISION: &str = "the yardstick does not know what to do with two keys of one hash";

impl<const N: usize> Operator<N> {
    fn arrive(&mut self, record: Record<Bytes>, now: u64, counts: &mut Counts) {
        let Record { key, side, split, offset, timestamp, base, payload } = record;
        let (hash, side) = (key.hash(), usize::from(side));
        let due = (base + self.window).max(now);
        counts.arrived += 1;
        let entry = Entry { split, offset, timestamp, payload, item: None };
        match self.map.entry(hash) {
            Place::Vacant(place) => {
                self.timers.entry(due).or_default().push(hash);
                let mut slots = [u32::MAX; N];
                slots[side] = self.slab.insert(due, entry);
                self.pending += 1;
                let state = State::Open { sides: 1 << side, delayed: false, deadline: due, slots };
                place.insert(Known { key: key.bytes().clone(), state });
            }
            Place::Occupied(mut place) => {
                let known = place.get_mut();
                assert!(known.key == *key.bytes(), "{COLLISION}");
                match &mut known.state {
                    State::Done { .. } => counts.dropped[Reason::Duplicate as usize] += 1,
                    State::Open { sides, delayed, deadline, slots } if *sides & 1 << side != 0 => {
                        counts.dropped[Reason::Overridden as usize] += 1;
                        if offset <= self.slab.get(slots[side]).1.offset {
                            return;
                        }
                        self.slab.remove(slots[side]);
                        slots[side] = self.slab.insert(due, entry);
                        if !*delayed {
                            let present = (0..N).filter(|side| *sides & 1 << side != 0);
                            let earliest = present.map(|side| self.slab.get(slots[side]).0).min();
                            *deadline = earliest.expect("a side is present");
                            self.timers.entry(*deadline).or_default().push(hash);
                        }
                    }
                    State::Open { sides, delayed, deadline, slots } => {
                        *sides |= 1 << side;
                        slots[side] = self.slab.insert(due, entry);
                        self.pending += 1;
                        if sides.count_ones() as usize == N {
                            self.full.push(key);
                        } else if !*delayed && due < *deadline {
                            *deadline = due;
                            self.timers.entry(due).or_default().push(hash);
                        }
                    }
                }
            }
        }
    }

    fn join(&mut self, now: u64, counts: &mut Counts, mut give: impl FnMut(Output<Bytes>)) {
        let until = now + self.remember;
        let mut full = std::mem::take(&mut self.full);
        for key in full.drain(..) {
            let known = self.map.get_mut(&key.hash()).expect("a key that is full is known");
            let State::Open { delayed, slots, .. } = std::mem::replace(&mut known.state, State::Done { until }) else {
                unreachable!("a key is full once in an epoch")
            };
            self.timers.entry(until).or_default().push(key.hash());
            let records = slots.iter().map(|slot| self.slab.remove(*slot)).collect();
            self.pending -= N as u64;
            counts.joins += 1;
            counts.late_joins += u64::from(delayed);
            counts.joined_records += N as u64;
            give(Output::Joined { key, late: delayed, records });
        }
        self.full = full;
    }

    fn expire(&mut self, now: u64, counts: &mut Counts, mut give: impl FnMut(Output<Bytes>)) {
        while let Some(first) = self.timers.first_entry().filter(|first| *first.key() < now) {
            let (due, hashes) = first.remove_entry();
            for hash in hashes {
                let Place::Occupied(mut place) = self.map.entry(hash) else { continue };
                let known = place.get_mut();
                match &mut known.state {
                    State::Done { until } if *until == due => drop(place.remove()),
                    State::Open { sides, delayed: true, deadline, slots } if *deadline == due => {
                        let present = (0..N).filter(|side| *sides & 1 << side != 0);
                        present.for_each(|side| drop(self.slab.remove(slots[side])));
                        counts.expired_records += u64::from(sides.count_ones());
                        self.pending -= u64::from(sides.count_ones());
                        place.remove();
                    }
                    State::Open { sides, delayed, deadline, slots } if *deadline == due => {
                        let entry =
                            |side: usize| (*sides & 1 << side != 0).then(|| self.slab.get(slots[side]).1.clone());
                        let records = (0..N).map(entry).collect();
                        *delayed = true;
                        *deadline = now + self.remember;
                        self.timers.entry(*deadline).or_default().push(hash);
                        counts.delays += 1;
                        give(Output::Delayed { key: Key::with_hash(hash, known.key.clone()), records });
                    }
                    _ => {} // its deadline is another one by now
                }
            }
        }
    }
}

/// An epoch that is not complete.
#[derive(Default)]
struct Epochs {
    records: BTreeMap<Epoch, Vec<Vec<Record<Bytes>>>>,
    ticks: BTreeMap<Epoch, (Capability<Epoch>, Capability<Epoch>, Tick)>,
}

/// Synchronizes `N` sides with one window, as `syncline::sync::synchronize` does with default options.
pub(crate) fn synchronize<'s, const N: usize>(
    records: Stream<'s, Epoch, Vec<Record<Bytes>>>,
    clock: Stream<'s, Epoch, Vec<Tick>>,
    window: u64,
    remember: u64,
) -> (Stream<'s, Epoch, Vec<Output<Bytes>>>, Stream<'s, Epoch, Vec<Counts>>) {
    let mut builder = OperatorBuilder::new("Map".to_owned(), records.scope());
    let mut records = builder.new_input(records, Exchange::new(|record: &Record<Bytes>| record.key.hash().hashed()));
    let mut clock = builder.new_input(clock, Pipeline);
    let (outputs, output_stream) = builder.new_output::<Vec<Output<Bytes>>>();
    let (counts, count_stream) = builder.new_output::<Vec<Counts>>();
    let mut outputs = OutputBuilder::<Epoch, CapacityContainerBuilder<_>>::from(outputs);
    let mut counts = OutputBuilder::<Epoch, CapacityContainerBuilder<_>>::from(counts);
    let mut operator = Operator::<N> {
        window,
        remember,
        map: HashMap::default(),
        slab: Slab::default(),
        timers: BTreeMap::new(),
        full: vec![],
        pending: 0,
    };
    builder.build(move |_| {
        let mut epochs = Epochs::default();
        move |frontiers| {
            let (mut outputs, mut counts) = (outputs.activate(), counts.activate());
            records.for_each(|capability, data| {
                let epoch = *capability.least().expect("data has a time");
                epochs.records.entry(epoch).or_default().push(std::mem::take(data));
            });
            clock.for_each(|capability, data| {
                let epoch = *capability.least().expect("data has a time");
                let [output, count] = [0, 1].map(|output| capability.retain_least(output).expect("data has a time"));
                data.drain(..).for_each(|tick| drop(epochs.ticks.insert(epoch, (output.clone(), count.clone(), tick))));
            });
            let complete = |epoch: &Epoch| frontiers.iter().all(|input| !input.frontier().less_equal(epoch));
            while let Some(first) = epochs.ticks.first_entry().filter(|first| complete(first.key())) {
                let (epoch, (output, count, Tick { time: now, .. })) = first.remove_entry();
                let mut session = outputs.session_with_builder(&output);
                let mut counted = Counts::default();
                for record in epochs.records.remove(&epoch).into_iter().flatten().flatten() {
                    operator.arrive(record, now, &mut counted);
                }
                operator.join(now, &mut counted, |output| session.give(output));
                operator.expire(now, &mut counted, |output| session.give(output));
                counted.pending_records = operator.pending;
                counts.session_with_builder(&count).give(counted);
            }
        }
    });
    (output_stream, count_stream)
}
