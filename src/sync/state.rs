//! The state of a key, as the trace holds it.

use std::fmt;

/// The latest time that a state can hold, in milliseconds since the Unix epoch: it is as good as never.
pub(crate) const MAX_TIME: u64 = (1 << 48) - 1;

/// What becomes of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Some sides are present; the others have until the deadline.
    Waiting,
    /// The deadline has passed; a completion would be late. Forgotten after its deadline.
    Delayed,
    /// All sides were present. Marked until its deadline, to know duplicates.
    Joined,
    /// The deadline has passed and that was final. Marked until its deadline, to know what is late.
    Closed,
}

/// The state of a key in twelve bytes: when it ends, which sides it has, and where the rest of it is.
///
/// A changed state always has another slot, so that the old and the new one are never equal.
#[repr(C, packed(4))]
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct State {
    /// The deadline in 48 bits, a bit for each side in 8, the phase in 2, whether it is late in 1.
    word: u64,
    slot: u32,
}

const LATE: u64 = 4;

impl State {
    /// A state that ends when the clock has passed `deadline`, which is capped at [`MAX_TIME`].
    pub(crate) fn new(phase: Phase, late: bool, sides: u8, deadline: u64, slot: u32) -> Self {
        let flags = phase as u64 | if late { LATE } else { 0 };
        State { word: deadline.min(MAX_TIME) << 16 | u64::from(sides) << 8 | flags, slot }
    }

    /// When the phase ends: as soon as the clock is beyond this time, in milliseconds since the Unix epoch.
    #[inline]
    pub fn deadline(self) -> u64 {
        self.word >> 16
    }

    /// What becomes of the key.
    #[inline]
    pub fn phase(self) -> Phase {
        match self.word & 3 {
            0 => Phase::Waiting,
            1 => Phase::Delayed,
            2 => Phase::Joined,
            _ => Phase::Closed,
        }
    }

    /// Whether nothing of the key waits any more: it is joined or closed.
    #[inline]
    pub fn is_finished(self) -> bool {
        self.word & 2 != 0
    }

    /// Whether the key was joined after its delay.
    #[inline]
    pub fn is_late(self) -> bool {
        self.word & LATE != 0
    }

    /// The sides that are present, or were when the key was finished: bit 0 for side 0, and so on.
    #[inline]
    pub fn sides(self) -> u8 {
        (self.word >> 8) as u8
    }

    /// Where the records of the key are, on its worker.
    #[inline]
    pub(crate) fn slot(self) -> u32 {
        self.slot
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let late = if self.is_late() { " late" } else { "" };
        write!(f, "{:?}{late} until {} sides {:b} at {}", self.phase(), self.deadline(), self.sides(), self.slot())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_comes_back() {
        assert_eq!(size_of::<State>(), 12);
        for phase in [Phase::Waiting, Phase::Delayed, Phase::Joined, Phase::Closed] {
            for (late, sides, deadline, slot) in [(false, 0x80, 0, 7), (true, 1, MAX_TIME, u32::MAX)] {
                let state = State::new(phase, late, sides, deadline, slot);
                assert_eq!((state.phase(), state.is_late(), state.sides()), (phase, late, sides));
                assert_eq!((state.deadline(), state.slot()), (deadline, slot));
                assert_eq!(state.is_finished(), matches!(phase, Phase::Joined | Phase::Closed));
            }
        }
        assert_eq!(State::new(Phase::Waiting, false, 1, u64::MAX, 0).deadline(), MAX_TIME);
    }
}
