//! The rules: what one key becomes in one epoch. Pure: (what it has, what arrives, the clock) -> what it becomes.

use super::counts::Counts;
use super::key::Key;
use super::options::{AtEnd, Duplicates, Late, MAX_SIDES, Options};
use super::record::{Entry, Record};
use super::state::MAX_TIME;
use crate::message::{Offset, Reason, SplitId};

/// The options, in the units that the rules count in.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    pub(crate) sides: usize,
    /// A bit for each side.
    full: u8,
    /// Milliseconds.
    windows: [u64; MAX_SIDES],
    remember: u64,
    max_wait: Option<u64>,
    late: Late,
    duplicates: Duplicates,
    pub(crate) at_end: AtEnd,
    pub(crate) emit_delays: bool,
}

/// A record that waits.
#[derive(Clone, Debug)]
pub(crate) struct Part<P> {
    pub(crate) side: u8,
    pub(crate) split: SplitId,
    pub(crate) offset: Offset,
    pub(crate) timestamp: u64,
    /// The clock at its arrival.
    pub(crate) clock: u64,
    /// When its own time is over.
    pub(crate) deadline: u64,
    /// The number of the epoch of its arrival, see [`Ages`](super::store::Ages).
    pub(crate) arrived: u64,
    pub(crate) payload: P,
}

/// A key that waits: with its time running, or delayed.
#[derive(Clone, Debug)]
pub(crate) struct Held<P> {
    pub(crate) delayed: bool,
    /// The sides that are present.
    pub(crate) sides: u8,
    /// When the key's time is over, or when it is forgotten if it is delayed.
    pub(crate) deadline: u64,
    /// The deadline cannot be later, whatever arrives.
    pub(crate) cap: u64,
    /// The first record to arrive: apart from the rest, because with two sides there is no other.
    first: Option<Part<P>>,
    rest: Vec<Part<P>>,
}

impl<P> Held<P> {
    pub(crate) fn new() -> Self {
        Held { delayed: false, sides: 0, deadline: 0, cap: MAX_TIME, first: None, rest: Vec::new() }
    }

    /// The records that wait.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &Part<P>> {
        self.first.iter().chain(&self.rest)
    }

    /// The records that wait.
    pub(crate) fn parts_mut(&mut self) -> impl Iterator<Item = &mut Part<P>> {
        self.first.iter_mut().chain(&mut self.rest)
    }

    /// Puts a record in its place; whether there was one.
    pub(crate) fn put(&mut self, part: Part<P>) -> bool {
        self.sides |= 1 << part.side;
        if let Some(old) = self.parts_mut().find(|old| old.side == part.side) {
            *old = part;
            return true;
        }
        match &mut self.first {
            None => self.first = Some(part),
            Some(_) => self.rest.push(part),
        }
        false
    }

    /// Takes the record of a side out, if it is there.
    fn remove(&mut self, side: u8) -> Option<Part<P>> {
        if self.first.as_ref().is_some_and(|part| part.side == side) {
            return self.first.take();
        }
        let at = self.rest.iter().position(|part| part.side == side)?;
        Some(self.rest.swap_remove(at))
    }

    /// The records by side; those that wait no more.
    pub(crate) fn into_entries(self, sides: usize) -> Vec<Option<Entry<P>>> {
        let mut entries: Vec<_> = (0..sides).map(|_| None).collect();
        for part in self.first.into_iter().chain(self.rest) {
            let side = usize::from(part.side);
            entries[side] = Some(part.into());
        }
        entries
    }
}

impl<P: Clone> Held<P> {
    /// Copies of the records, by side.
    pub(crate) fn entries(&self, sides: usize) -> Vec<Option<Entry<P>>> {
        self.clone().into_entries(sides)
    }
}

impl<P> From<Part<P>> for Entry<P> {
    fn from(part: Part<P>) -> Self {
        let Part { split, offset, timestamp, payload, .. } = part;
        Entry { split, offset, timestamp, payload, item: None }
    }
}

/// The records of one key that arrive in an epoch, sorted by side, split and offset.
pub(crate) struct Arrivals<'a, P> {
    /// Where they are in `records`.
    pub(crate) order: &'a [(u64, u32)],
    pub(crate) records: &'a mut [Option<Record<P>>],
    /// The key of a record that was taken.
    pub(crate) key: Option<Key>,
}

/// The record of each side that counts, by its index in [`Arrivals::records`].
struct Winners {
    sides: u8,
    index: [u32; MAX_SIDES],
}

impl<P> Arrivals<'_, P> {
    fn get(&self, at: usize) -> Option<&Record<P>> {
        self.records[self.order.get(at)?.1 as usize].as_ref()
    }

    /// Takes a record out.
    fn take(&mut self, index: u32) -> Option<Entry<P>> {
        let Record { key, split, offset, timestamp, payload, .. } = self.records[index as usize].take()?;
        self.key = Some(key);
        Some(Entry { split, offset, timestamp, payload, item: None })
    }

    /// Within an epoch, the candidate of a split is its last record, and among candidates the largest (timestamp, split)
    /// wins; or the first and the smallest.
    fn winners(&self, duplicates: Duplicates) -> Winners {
        let mut winners = Winners { sides: 0, index: [0; MAX_SIDES] };
        let mut best = None;
        for (at, (_, index)) in self.order.iter().enumerate() {
            let Some(record) = self.get(at) else { continue };
            let (side, rank) = (1 << record.side, Some((record.timestamp, record.split)));
            let same_split = |other: Option<&Record<P>>| {
                other.is_some_and(|other| (other.side, other.split) == (record.side, record.split))
            };
            let fresh = winners.sides & side == 0;
            let wins = match duplicates {
                Duplicates::Last => !same_split(self.get(at + 1)) && (fresh || rank > best),
                Duplicates::First => !(at > 0 && same_split(self.get(at - 1))) && (fresh || rank < best),
            };
            if wins {
                winners.sides |= side;
                winners.index[usize::from(record.side)] = *index;
                best = rank;
            }
        }
        winners
    }
}

/// What a key becomes.
pub(crate) enum Next<P> {
    /// It waits as before.
    Same(Held<P>),
    /// It waits, and something about it is new.
    Held(Held<P>),
    /// Its time is over, which is to be told; it waits on to be late.
    Delayed(Held<P>),
    /// Its time is over, which is to be told, and that is final.
    Closed(Held<P>),
    /// All sides are there. It is remembered from `since` on.
    Joined { late: bool, records: Vec<Entry<P>>, since: u64 },
    /// Nobody remembers it.
    Forgotten,
}

impl Rules {
    pub(crate) fn new(options: &Options) -> Self {
        let mut windows = [0; MAX_SIDES];
        for (window, duration) in windows.iter_mut().zip(&options.windows) {
            *window = duration.as_millis() as u64;
        }
        Rules {
            sides: options.windows.len(),
            full: ((1u16 << options.windows.len()) - 1) as u8,
            windows,
            remember: options.remember.as_millis() as u64,
            max_wait: options.max_wait.map(|duration| duration.as_millis() as u64),
            late: options.late,
            duplicates: options.duplicates,
            at_end: options.at_end,
            emit_delays: options.emit_delays,
        }
    }

    /// Until when a key is remembered that is finished or delayed at this time.
    pub(crate) fn until(&self, since: u64) -> u64 {
        since.saturating_add(self.remember).min(MAX_TIME)
    }

    /// Why a record is dropped if another one of its side counts.
    pub(crate) fn loses(&self) -> Reason {
        match self.duplicates {
            Duplicates::Last => Reason::Overridden,
            Duplicates::First => Reason::Duplicate,
        }
    }

    /// One epoch of a key that waits, or has no state: what arrives comes first, then what is due. `epoch` is its number.
    pub(crate) fn step<P>(
        &self,
        held: Option<Held<P>>,
        arrivals: &mut Arrivals<'_, P>,
        clock: u64,
        epoch: u64,
        counts: &mut Counts,
    ) -> Next<P> {
        let fresh = held.is_none();
        let mut held = held.unwrap_or_else(Held::new);
        let mut winners = arrivals.winners(self.duplicates);
        if self.duplicates == Duplicates::First {
            winners.sides &= !held.sides;
        }
        counts.drop_records(self.loses(), arrivals.order.len() as u64 - u64::from(winners.sides.count_ones()));
        if held.sides | winners.sides == self.full {
            return self.join(held, arrivals, &winners, clock, counts);
        }
        if winners.sides != 0 {
            self.fill(&mut held, arrivals, &winners, clock, epoch, fresh, counts);
        }
        match (held.deadline < clock, held.delayed, self.late) {
            (false, _, _) if winners.sides == 0 => Next::Same(held),
            (false, _, _) => Next::Held(held),
            (true, true, _) => {
                counts.expired_records += u64::from(held.sides.count_ones());
                Next::Forgotten
            }
            (true, false, late) => self.delay(held, late, clock, counts),
        }
    }

    /// All sides are there: new records before those that waited.
    fn join<P>(
        &self,
        mut held: Held<P>,
        arrivals: &mut Arrivals<'_, P>,
        winners: &Winners,
        clock: u64,
        counts: &mut Counts,
    ) -> Next<P> {
        let late = held.delayed;
        // The clock stands at 0 until every split was read: a mark that counted from there would be forgotten at the first tick.
        let mut since = clock;
        counts.drop_records(self.loses(), u64::from((held.sides & winners.sides).count_ones()));
        counts.joined_records += self.sides as u64;
        counts.joins += 1;
        counts.late_joins += u64::from(late);
        let mut records = Vec::with_capacity(self.sides);
        for side in 0..self.sides as u8 {
            let entry = match winners.sides & 1 << side {
                0 => held.remove(side).map(|part| {
                    since = since.max(part.deadline.saturating_sub(self.windows[usize::from(side)]));
                    Entry::from(part)
                }),
                _ => {
                    let index = winners.index[usize::from(side)];
                    since = arrivals.records[index as usize].as_ref().map_or(since, |record| since.max(record.base));
                    arrivals.take(index)
                }
            };
            records.extend(entry);
        }
        debug_assert_eq!(records.len(), self.sides);
        Next::Joined { late, records, since }
    }

    #[allow(clippy::too_many_arguments)]
    fn fill<P>(
        &self,
        held: &mut Held<P>,
        arrivals: &mut Arrivals<'_, P>,
        winners: &Winners,
        clock: u64,
        epoch: u64,
        fresh: bool,
        counts: &mut Counts,
    ) {
        let mut first_base = u64::MAX;
        for side in (0..self.sides as u8).filter(|side| winners.sides & 1 << side != 0) {
            let index = winners.index[usize::from(side)];
            let Some(base) = arrivals.records[index as usize].as_ref().map(|record| record.base) else { continue };
            let Some(Entry { split, offset, timestamp, payload, item: None }) = arrivals.take(index) else { continue };
            first_base = first_base.min(base);
            let deadline = base.saturating_add(self.windows[usize::from(side)]).max(clock).min(MAX_TIME);
            let part = Part { side, split, offset, timestamp, clock, deadline, arrived: epoch, payload };
            if held.put(part) {
                counts.drop_records(Reason::Overridden, 1);
            }
        }
        if held.delayed {
            return;
        }
        if let Some(max_wait) = self.max_wait.filter(|_| fresh) {
            held.cap = first_base.saturating_add(max_wait).max(clock).min(MAX_TIME);
        }
        held.deadline = held.parts().map(|part| part.deadline).fold(held.cap, u64::min);
    }

    /// The time of a key is over.
    fn delay<P>(&self, mut held: Held<P>, late: Late, clock: u64, counts: &mut Counts) -> Next<P> {
        self.tell(counts);
        match late {
            Late::Join => {
                held.delayed = true;
                held.deadline = self.until(clock);
                Next::Delayed(held)
            }
            Late::Drop => {
                counts.expired_records += u64::from(held.sides.count_ones());
                Next::Closed(held)
            }
        }
    }

    /// Counts a delay.
    pub(crate) fn tell(&self, counts: &mut Counts) {
        if self.emit_delays {
            counts.delays += 1;
        } else {
            counts.unmatched += 1;
        }
    }
}
