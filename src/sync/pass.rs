//! The pass over the keys that an epoch touches: steps each and writes down what becomes of it.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;

use super::batch::Update;
use super::counts::Counts;
use super::kept::{Before, Recorder};
use super::key::{Key, KeyHash};
use super::record::{Entry, Output, Payload, Record};
use super::state::{Phase, State};
use super::step::{Arrivals, Next, Rules};
use super::store::{Open, OwnKey, Store};
use super::wheel::Wheel;
use crate::epoch::Epoch;
use crate::message::Reason;

/// A key that is stepped: it waited, or a record of it has arrived.
struct Known {
    own: Option<OwnKey>,
    arrived: Option<Key>,
}

impl Known {
    const ONE: &str = "a key waits or has arrived";

    fn key(&self) -> Key {
        self.arrived.clone().or_else(|| self.own.as_ref().map(OwnKey::key)).expect(Self::ONE)
    }

    fn into_key(self) -> Key {
        self.arrived.or_else(|| self.own.as_ref().map(OwnKey::key)).expect(Self::ONE)
    }

    fn into_own(self) -> OwnKey {
        self.own.or_else(|| self.arrived.as_ref().map(OwnKey::new)).expect(Self::ONE)
    }
}

/// One pass over the touched keys of an epoch.
pub(crate) struct Pass<'a, P, G> {
    pub(crate) rules: &'a Rules,
    pub(crate) store: &'a mut Store<P>,
    pub(crate) wheel: &'a mut Wheel,
    pub(crate) recorder: &'a mut Recorder,
    pub(crate) order: &'a [(u64, u32)],
    pub(crate) records: &'a mut [Option<Record<P>>],
    pub(crate) time: Epoch,
    pub(crate) clock: u64,
    pub(crate) counts: Counts,
    pub(crate) updates: Vec<Update>,
    pub(crate) give: G,
}

impl<P: Payload, G: FnMut(Output<P>)> Pass<'_, P, G> {
    /// The canonical bytes of the key of a sorted record.
    fn key_bytes(&self, at: usize) -> Option<&Bytes> {
        self.records[self.order[at].1 as usize].as_ref().map(|record| record.key.bytes())
    }

    /// Whether the records of a hash, and the state that was found for it, are not all of one key.
    pub(crate) fn is_mixed(&self, old: Option<State>, mut range: Range<usize>) -> bool {
        let Some(first) = range.next() else { return false };
        let key = self.key_bytes(first);
        range.any(|at| self.key_bytes(at) != key)
            || old.is_some_and(|old| key.is_some_and(|key| key != self.store.key_bytes(old)))
    }

    /// Steps the keys of one hash; how many of them have a state then.
    pub(crate) fn many(&mut self, hash: KeyHash, states: Vec<State>, range: Range<usize>) -> usize {
        let mut keys: BTreeMap<Bytes, (Option<State>, Range<usize>)> = BTreeMap::new();
        for state in states {
            keys.insert(Bytes::copy_from_slice(self.store.key_bytes(state)), (Some(state), 0..0));
        }
        for at in range {
            let Some(key) = self.key_bytes(at).cloned() else { continue };
            let (_, range) = keys.entry(key).or_insert((None, 0..0));
            *range = if range.start == range.end { at..at + 1 } else { range.start..at + 1 };
        }
        let (from, mut live) = (self.updates.len(), 0);
        for (old, range) in keys.into_values() {
            let new = self.one(old, range);
            live += usize::from(new.is_some());
            self.change(hash, old, new);
        }
        self.updates[from..].sort_unstable_by_key(|update| update.value);
        live
    }

    /// Steps one key; its new state.
    pub(crate) fn one(&mut self, old: Option<State>, range: Range<usize>) -> Option<State> {
        if let Some(old) = old.filter(|old| old.is_finished()) {
            return self.mark(old, range.len());
        }
        let open = old.map(|old| self.store.take(old));
        let before = self.recorder.before(open.as_ref());
        let (own, held) = open.map_or((None, None), |Open { key, held }| (Some(key), Some(held)));
        let mut arrivals = Arrivals { order: &self.order[range], records: self.records, key: None };
        let epoch = self.store.ages.current();
        let loses = self.rules.loses();
        let dropped = self.counts.dropped(loses);
        let next = self.rules.step(held, &mut arrivals, self.clock, epoch, &mut self.counts);
        let (arrived, dropped) = (arrivals.key, self.counts.dropped(loses) - dropped);
        if own.is_none() && arrived.is_none() {
            return None; // nothing was, nothing came
        }
        let known = Known { own, arrived };
        if dropped > 0 {
            let action = if loses == Reason::Overridden { "DUPLICATE-OVERRIDE" } else { "DUPLICATE" };
            tracing::trace!(action, records = dropped, key = %known.key());
        }
        let sides = self.rules.sides;
        let new = match (next, old) {
            (Next::Same(held), Some(old)) => {
                self.store.put_back(old, Open { key: known.into_own(), held });
                return Some(old);
            }
            (Next::Same(held) | Next::Held(held), _) => Some(self.hold(before, Open { key: known.into_own(), held })),
            (Next::Delayed(held), _) => {
                if self.rules.emit_delays {
                    let mut records = held.entries(sides);
                    self.recorder.refer(&before, records.iter_mut().map(Option::as_mut));
                    (self.give)(Output::Delayed { key: known.key(), records });
                }
                Some(self.hold(before, Open { key: known.into_own(), held }))
            }
            (Next::Closed(held), _) => {
                let (key, mut records) = (known.into_key(), held.into_entries(sides));
                self.recorder.refer(&before, records.iter_mut().map(Option::as_mut));
                let finished = (Phase::Closed, false, self.rules.until(self.clock));
                let new = self.finish(before, &key, finished, records.iter().map(Option::as_ref));
                if self.rules.emit_delays {
                    (self.give)(Output::Delayed { key, records });
                }
                Some(new)
            }
            (Next::Joined { late, mut records, since }, _) => {
                self.recorder.refer(&before, records.iter_mut().map(Some));
                let (key, finished) = (known.into_key(), (Phase::Joined, late, self.rules.until(since)));
                let new = self.finish(before, &key, finished, records.iter().map(Some));
                (self.give)(Output::Joined { key, late, records });
                Some(new)
            }
            (Next::Forgotten, _) => {
                self.recorder.waits_no_more(before);
                None
            }
        };
        if let Some(old) = old {
            self.store.retire(old, self.time); // only after the new slot was taken
        }
        if let Some(new) = new {
            self.wheel.push(new.deadline(), Store::<P>::ticket(new));
        }
        new
    }

    fn hold(&mut self, before: Before, open: Open<P>) -> State {
        let state = self.store.hold(open);
        if let Some(open) = self.store.open(state) {
            self.recorder.holds(before, open); // its payloads are its own by now
        }
        state
    }

    fn finish<'e>(
        &mut self,
        before: Before,
        key: &Key,
        finished: (Phase, bool, u64),
        records: impl Iterator<Item = Option<&'e Entry<P>>> + Clone,
    ) -> State
    where
        P: 'e,
    {
        let positions = records.map(|record| record.map(|record| (record.split, record.offset)));
        let new = self.store.finish(key, finished, positions);
        self.recorder.waits_no_more(before);
        self.recorder.finished(self.store, new, self.rules.sides);
        new
    }

    /// Steps a key that is finished: what arrives is dropped, and does not make the mark last longer.
    fn mark(&mut self, old: State, arrived: usize) -> Option<State> {
        if arrived > 0 {
            let reason = if old.phase() == Phase::Joined { Reason::Duplicate } else { Reason::Late };
            self.counts.drop_records(reason, arrived as u64);
            self.recorder.unfinished(self.store, old);
            self.store.add_dropped(old, arrived);
            self.recorder.finished(self.store, old, self.rules.sides);
            let action = if reason == Reason::Duplicate { "DUPLICATE" } else { "LATE" };
            tracing::trace!(action, records = arrived, key = %Key::new(Bytes::copy_from_slice(self.store.key_bytes(old))));
        }
        if old.deadline() >= self.clock {
            return Some(old);
        }
        self.recorder.unfinished(self.store, old);
        self.store.forget(old, self.time);
        None
    }

    pub(crate) fn change(&mut self, key: KeyHash, old: Option<State>, new: Option<State>) {
        if old == new {
            return;
        }
        let retract = old.map(|value| Update { key, value, diff: -1 });
        let assert = new.map(|value| Update { key, value, diff: 1 });
        let (one, two) = if old < new { (retract, assert) } else { (assert, retract) };
        self.updates.extend(one);
        self.updates.extend(two);
    }

    /// The end of all input: every key that waits is delayed and forgotten. Finished ones stay remembered.
    pub(crate) fn retire_all(&mut self) {
        let mut all = self.store.waiting();
        all.sort_unstable();
        self.updates.reserve_exact(all.len());
        for (hash, state) in all {
            self.updates.push(Update { key: hash, value: state, diff: -1 });
            let open = self.store.take(state);
            let before = self.recorder.before(Some(&open));
            let Open { key, held } = open;
            self.store.retire(state, self.time);
            self.counts.expired_records += u64::from(held.sides.count_ones());
            let (delayed, mut records) = (held.delayed, held.into_entries(self.rules.sides));
            self.recorder.refer(&before, records.iter_mut().map(Option::as_mut));
            self.recorder.waits_no_more(before);
            if delayed {
                continue;
            }
            self.rules.tell(&mut self.counts);
            if self.rules.emit_delays {
                (self.give)(Output::Delayed { key: key.key(), records });
            }
        }
        consolidate(&mut self.updates);
    }
}

/// Sorts updates and cancels those that are of no effect.
fn consolidate(updates: &mut Vec<Update>) {
    updates.sort_unstable_by_key(|update| (update.key, update.value));
    let mut kept = 0usize;
    for at in 0..updates.len() {
        let update = updates[at];
        match kept.checked_sub(1).map(|last| &mut updates[last]) {
            Some(last) if (last.key, last.value) == (update.key, update.value) => last.diff += update.diff,
            _ => {
                updates[kept] = update;
                kept += 1;
            }
        }
        kept -= usize::from(updates[kept - 1].diff == 0);
    }
    updates.truncate(kept);
}
