//! A cursor over a batch: how differential's operators read it.

use differential_dataflow::trace::{Cursor, Navigable};

use super::{Diff, StateBatch, Update};
use crate::epoch::Epoch;
use crate::sync::key::KeyHash;
use crate::sync::state::State;

/// A cursor over a batch.
pub struct StateCursor {
    /// The first update of the current key.
    key: usize,
    /// The first update of the current state.
    val: usize,
}

impl Navigable for StateBatch {
    type Cursor = StateCursor;
    fn cursor(&self) -> StateCursor {
        StateCursor { key: 0, val: 0 }
    }
}

impl Cursor for StateCursor {
    type Storage = StateBatch;
    type Key<'a> = &'a KeyHash;
    type Val<'a> = &'a State;
    type ValOwn = State;
    type Time = Epoch;
    type TimeGat<'a> = &'a Epoch;
    type Diff = Diff;
    type DiffGat<'a> = &'a Diff;
    type KeyContainer = Vec<KeyHash>;
    type ValContainer = Vec<State>;
    type TimeContainer = Vec<Epoch>;
    type DiffContainer = Vec<Diff>;

    fn key_valid(&self, batch: &StateBatch) -> bool {
        self.key < batch.updates.len()
    }

    fn val_valid(&self, batch: &StateBatch) -> bool {
        self.get_val(batch).is_some()
    }

    fn key<'a>(&self, batch: &'a StateBatch) -> &'a KeyHash {
        &batch.updates[self.key].key
    }

    fn val<'a>(&self, batch: &'a StateBatch) -> &'a State {
        &batch.updates[self.val].value
    }

    fn get_key<'a>(&self, batch: &'a StateBatch) -> Option<&'a KeyHash> {
        batch.updates.get(self.key).map(|update| &update.key)
    }

    fn get_val<'a>(&self, batch: &'a StateBatch) -> Option<&'a State> {
        let key = batch.updates.get(self.key)?.key;
        batch.updates.get(self.val).filter(|update| update.key == key).map(|update| &update.value)
    }

    fn map_times<L: FnMut(&Epoch, &Diff)>(&mut self, batch: &StateBatch, mut logic: L) {
        let current = batch.updates[self.val];
        for (index, update) in batch.updates.iter().enumerate().skip(self.val) {
            if update.key != current.key || update.value != current.value {
                break;
            }
            logic(batch.times.get(index), &update.diff);
        }
    }

    fn step_key(&mut self, batch: &StateBatch) {
        if let Some(current) = batch.updates.get(self.key) {
            self.key += batch.updates[self.key..].iter().take_while(|update| update.key == current.key).count();
        }
        self.val = self.key;
    }

    fn seek_key(&mut self, batch: &StateBatch, key: &KeyHash) {
        self.key = self.key.max(batch.index.start(key.top()));
        while batch.updates.get(self.key).is_some_and(|update| update.key < *key) {
            self.key += 1;
        }
        self.val = self.key;
    }

    fn step_val(&mut self, batch: &StateBatch) {
        if let Some(current) = batch.updates.get(self.val) {
            let same = |update: &&Update| update.key == current.key && update.value == current.value;
            self.val += batch.updates[self.val..].iter().take_while(same).count();
        }
    }

    fn seek_val(&mut self, batch: &StateBatch, val: &State) {
        while self.get_val(batch).is_some_and(|current| current < val) {
            self.val += 1;
        }
    }

    fn rewind_keys(&mut self, _batch: &StateBatch) {
        self.key = 0;
        self.val = 0;
    }

    fn rewind_vals(&mut self, _batch: &StateBatch) {
        self.val = self.key;
    }
}
