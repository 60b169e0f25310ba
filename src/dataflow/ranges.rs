//! How close ranges follow each other, where the device could do more.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// Lets the operator that decides ranges do so no more often than was wanted. On worker 0; the others have no say.
#[derive(Debug)]
pub(crate) struct RangePace {
    every: Duration,
    /// Shared with the operator, which takes it back when it has decided.
    may_decide: Rc<Cell<bool>>,
    /// When the last range was seen to be decided, on the monotonic clock.
    last: Option<Duration>,
}

impl RangePace {
    pub fn new(every: Duration) -> Self {
        RangePace { every, may_decide: Rc::new(Cell::new(true)), last: None }
    }

    /// What the operator looks at; nothing, if it may always decide.
    pub fn may_decide(&self) -> Option<Rc<Cell<bool>>> {
        (!self.every.is_zero()).then(|| Rc::clone(&self.may_decide))
    }

    /// Looks whether it is time. `at_once`: no longer worth waiting. Says whether the operator may decide now and could not before, and
    /// else how long it takes until it may.
    pub fn look(&mut self, now: Duration, at_once: bool) -> (bool, Option<Duration>) {
        if self.may_decide.get() {
            self.last = None;
            return (false, None);
        }
        let last = *self.last.get_or_insert(now);
        let rest = (last + self.every).saturating_sub(now);
        if at_once || rest.is_zero() {
            self.may_decide.set(true);
            self.last = None;
            return (true, None);
        }
        (false, Some(rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_keep_their_distance_unless_it_ends() {
        let ms = Duration::from_millis;
        let mut pace = RangePace::new(ms(100));
        let cell = pace.may_decide().unwrap();
        assert_eq!(pace.look(ms(5), false), (false, None)); // nothing was decided yet
        cell.set(false);
        assert_eq!(pace.look(ms(10), false), (false, Some(ms(100))));
        assert_eq!(pace.look(ms(70), false), (false, Some(ms(40))));
        assert!(!cell.get());
        assert_eq!(pace.look(ms(110), false), (true, None));
        assert!(cell.get());
        cell.set(false);
        assert_eq!(pace.look(ms(120), true), (true, None));
        assert!(RangePace::new(Duration::ZERO).may_decide().is_none());
    }
}
