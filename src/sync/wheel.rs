//! Deadlines: a hierarchical timer wheel. Setting a deadline and taking what is due cost the same however many wait.
//!
//! A deadline stands on the level of the highest digit (six bits) in which it differs from the wheel's time, in the place of
//! that digit. When time moves on and changes a digit, everything below it is due, and the place of the new digit is dealt out
//! to the levels below. Idea: Varghese and Lauck, *Hashed and Hierarchical Timing Wheels*, 1987.

/// Bits of a digit.
const BITS: u32 = 6;
/// Places on a level: one for each value of a digit.
const PLACES: usize = 1 << BITS;
/// Levels for all 64 bits of a time.
const LEVELS: usize = (u64::BITS as usize).div_ceil(BITS as usize);

/// Entries of a place that grow as one; beyond, it is blocks of so many. Fewer: more allocations; more: more stands empty, and is
/// held twice while it grows or is dealt out.
const BLOCK: usize = 1024;

/// Slots by deadline, in milliseconds.
pub(crate) struct Wheel {
    /// Nothing before it is left.
    time: u64,
    /// Which places of a level hold something: one bit for each.
    occupied: [u64; LEVELS],
    places: Vec<Place>,
}

/// A slot and when it is due. Packed, because there is one for every key.
#[derive(Clone, Copy)]
#[repr(C, packed(4))]
struct Entry {
    deadline: u64,
    slot: u32,
}

#[derive(Default)]
struct Place {
    full: Vec<Vec<Entry>>,
    open: Vec<Entry>,
}

impl Place {
    #[inline]
    fn push(&mut self, entry: Entry) {
        if self.open.len() == BLOCK {
            self.full.push(std::mem::replace(&mut self.open, Vec::with_capacity(BLOCK)));
        }
        self.open.push(entry);
    }

    /// All entries; each block is given back when it is read.
    fn take(&mut self) -> impl Iterator<Item = Entry> + use<> {
        let Place { full, open } = std::mem::take(self);
        full.into_iter().chain([open]).flatten()
    }

    fn bytes(&self) -> usize {
        let entries: usize = self.full.iter().chain([&self.open]).map(Vec::capacity).sum();
        entries * size_of::<Entry>() + self.full.capacity() * size_of::<Vec<Entry>>()
    }
}

impl Wheel {
    pub(crate) fn new() -> Self {
        Wheel { time: 0, occupied: [0; LEVELS], places: (0..LEVELS * PLACES).map(|_| Place::default()).collect() }
    }

    /// The level of a deadline, and its place there.
    #[inline]
    fn place(&self, deadline: u64) -> (usize, usize) {
        let level = match deadline ^ self.time {
            0 => 0,
            differing => (differing.ilog2() / BITS) as usize,
        };
        (level, digit(deadline, level))
    }

    /// Makes a slot due when time has passed `deadline`, which is not before the time last given to `take`.
    #[inline]
    pub(crate) fn push(&mut self, deadline: u64, slot: u32) {
        debug_assert!(deadline >= self.time, "deadline {deadline} is before {}", self.time);
        let deadline = deadline.max(self.time);
        let (level, place) = self.place(deadline);
        self.occupied[level] |= 1 << place;
        self.places[level * PLACES + place].push(Entry { deadline, slot });
    }

    /// Moves time to `now` and takes the slots whose deadlines are before it, in an order that only follows from the calls.
    pub(crate) fn take(&mut self, now: u64, mut due: impl FnMut(u64, u32)) {
        if now <= self.time {
            return;
        }
        let top = ((now ^ self.time).ilog2() / BITS) as usize;
        for level in 0..top {
            self.drain(level, u64::MAX, &mut due);
        }
        let at = digit(now, top);
        self.drain(top, (1 << at) - 1, &mut due);
        self.time = now;
        if self.occupied[top] & 1 << at != 0 {
            self.occupied[top] &= !(1 << at);
            for Entry { deadline, slot } in self.places[top * PLACES + at].take() {
                if deadline < now {
                    due(deadline, slot);
                } else {
                    self.push(deadline, slot);
                }
            }
        }
    }

    fn drain(&mut self, level: usize, mask: u64, due: &mut impl FnMut(u64, u32)) {
        let mut places = self.occupied[level] & mask;
        self.occupied[level] &= !mask;
        while places != 0 {
            let place = places.trailing_zeros() as usize;
            places &= places - 1;
            for Entry { deadline, slot } in self.places[level * PLACES + place].take() {
                due(deadline, slot);
            }
        }
    }

    /// The memory held, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.places.iter().map(Place::bytes).sum()
    }
}

/// The digit of a time at a level.
#[inline]
fn digit(time: u64, level: usize) -> usize {
    (time >> (level as u32 * BITS)) as usize % PLACES
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn agrees_with_a_sorted_set(
            start in 0u64..1 << 47,
            steps in prop::collection::vec((0u32..42, 0u32..30, any::<u64>(), any::<u64>()), 0..200),
        ) {
            let (mut wheel, mut set, mut now) = (Wheel::new(), BTreeSet::new(), 0);
            let take = |wheel: &mut Wheel, set: &mut BTreeSet<(u64, u32)>, now: u64| {
                let mut due = BTreeSet::new();
                wheel.take(now, |deadline, slot| assert!(due.insert((deadline, slot))));
                let rest = set.split_off(&(now, 0));
                (due, std::mem::replace(set, rest))
            };
            take(&mut wheel, &mut set, start);
            now += start;
            for (slot, (far, near, random, other)) in steps.into_iter().enumerate() {
                let deadline = now + random % (1 << far);
                wheel.push(deadline, slot as u32);
                set.insert((deadline, slot as u32));
                if other % 3 == 0 {
                    now += (other >> 2) % (1 << near);
                    let (due, expected) = take(&mut wheel, &mut set, now);
                    prop_assert_eq!(due, expected);
                }
            }
            let last = set.last().map_or(0, |(deadline, _)| *deadline);
            let (rest, expected) = take(&mut wheel, &mut set, last + 1);
            prop_assert_eq!(rest, expected);
            prop_assert!(set.is_empty());
            prop_assert_eq!(wheel.bytes(), 0);
        }
    }

    #[test]
    fn a_deadline_is_due_only_when_it_has_passed() {
        let mut wheel = Wheel::new();
        wheel.push(0, 1);
        wheel.push(64, 2);
        let mut due = vec![];
        wheel.take(0, |_, slot| due.push(slot));
        assert!(due.is_empty());
        wheel.take(64, |_, slot| due.push(slot));
        assert_eq!(due, [1]);
        wheel.push(64, 3);
        wheel.take(65, |_, slot| due.push(slot));
        assert_eq!(due, [1, 2, 3]);
    }
}
