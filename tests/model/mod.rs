//! The synchronization against its references, on random scripts.
//!
//! Three formulations must agree in every epoch: the rules said plainly, key by key ([`naive`]); differential collections
//! joined by `join_core` with a feedback ([`reference`]); and the operator, on one to three workers. What this would catch:
//! rules that depend on the order within an epoch, on the number of workers, on which batches of the trace are merged, on
//! hashes that collide, on a reader that holds the trace back; records lost or counted twice; states never freed.
//!
//! `SYNCLINE_MODEL_CASES` sets the number of scripts.

mod floor;
mod naive;
pub(crate) mod random;
mod reference;
mod run;
mod script;

use std::collections::BTreeMap;
use std::sync::Arc;

use naive::{Model, Seen, View};
use random::Random;
use run::{Accumulated, Manner, Ran, in_join, run_all};
use script::{Script, script};
use syncline::sync::{AtEnd, Counts};

fn cases(default: u64) -> u64 {
    std::env::var("SYNCLINE_MODEL_CASES").map_or(default, |cases| cases.parse().expect("a number of cases"))
}

fn manner(seed: u64) -> Manner {
    let mut random = Random::new(seed ^ 0xabcd_ef01);
    Manner {
        flight: 1 + random.below(5) as usize,
        hold: random.one_in(3).then(|| random.below(60) as usize),
        join: random.one_in(3),
        seed,
    }
}

/// What the model says: after each step, what was seen, and the states.
fn expected(script: &Script) -> Vec<(Seen, Vec<View>)> {
    let mut model = Model::new(&script.options);
    script.steps.iter().map(|step| (model.step(step), model.views())).collect()
}

/// Holds what workers saw against what the model says.
fn check(script: &Script, ran: &[Ran], name: &str) {
    let mut levels = vec![0; ran.len()];
    let mut total = Counts::default();
    let mut states = Accumulated::new(ran.iter().flat_map(|ran| &ran.updates));
    let mut joined = Accumulated::new(ran.iter().flat_map(|ran| &ran.joined));
    let is_joined = ran.iter().any(|ran| !ran.joined.is_empty());
    let mut held: BTreeMap<usize, Vec<View>> = BTreeMap::new();
    for (place, view) in ran.iter().flat_map(|ran| &ran.held) {
        held.entry(*place).or_default().push(*view);
    }
    let mut keys = 0;
    for (place, (step, (seen, views))) in script.steps.iter().zip(expected(script)).enumerate() {
        let at = || format!("{name}, step {place}: {step:?}, options {:?}", script.options);
        let mut outputs = Vec::new();
        let mut counts = Counts::default();
        for (ran, level) in ran.iter().zip(&mut levels) {
            let mine: Vec<_> =
                ran.outputs.iter().filter(|output| output.0 == step.epoch).map(|output| &output.1).collect();
            assert!(mine.is_sorted_by_key(|output| output.key()), "order of outputs of {}", at());
            outputs.extend(mine.into_iter().cloned());
            for (_, one) in ran.counts.iter().filter(|counts| counts.0 == step.epoch) {
                counts += *one;
                *level = one.pending_records;
            }
        }
        outputs.sort();
        counts.pending_records = levels.iter().sum(); // of workers to which nothing came as well
        assert_eq!(outputs, seen.outputs, "outputs of {}", at());
        assert_eq!(counts, seen.counts, "counts of {}", at());
        keys = views.len();
        total.follow(&counts);
        assert_eq!(total.difference(), 0, "conservation of {}", at());
        assert_eq!(states.advance(step.epoch), views, "states of {}", at());
        if is_joined {
            let some: Vec<View> = views.iter().filter(|view| in_join(view.0)).copied().collect();
            assert_eq!(joined.advance(step.epoch), some, "join of {}", at());
        }
        if let Some(held) = held.get_mut(&place) {
            held.sort();
            assert_eq!(held, &views, "trace of {}", at());
        }
    }
    let ended = script.steps.last().is_some_and(|step| step.tick.is_some_and(|tick| tick.end));
    if ended && script.options.at_end == AtEnd::Delay {
        assert_eq!(total.pending_records, 0, "something waits after the end of {name}");
    }
    assert_eq!(ran.iter().map(|ran| ran.gauges.0).sum::<usize>(), keys, "gauges of {name}");
    let pending: u64 = ran.iter().map(|ran| ran.gauges.1).sum();
    assert_eq!(pending, total.pending_records, "gauges of {name}");
}

fn campaign(seeds: std::ops::Range<u64>, workers: usize) {
    /// Scripts side by side: more means fewer waits of workers for each other.
    const AT_ONCE: u64 = 50;
    let mut start = seeds.start;
    while start < seeds.end {
        let end = seeds.end.min(start + AT_ONCE);
        let scripts: Vec<_> = (start..end).map(|seed| (script(seed), manner(seed))).collect();
        let scripts = Arc::new(scripts);
        for ((seed, ran), (script, manner)) in
            (start..end).zip(run_all(Arc::clone(&scripts), workers)).zip(scripts.iter())
        {
            check(script, &ran, &format!("seed {seed} ({manner:?})"));
        }
        start = end;
    }
}

/// The scripts of each campaign, by number of workers: the reference runs the very same ones.
fn seeds(workers: usize) -> std::ops::Range<u64> {
    let (start, tenths) = [(0, 4), (1_000_000_000, 4), (2_000_000_000, 2)][workers - 1];
    start..start + cases(10_000) * tenths / 10
}

fn reference_campaign(seeds: std::ops::Range<u64>) {
    timely::execute_directly(move |worker| {
        for seed in seeds {
            let script = script(seed);
            let expected: Vec<Seen> = expected(&script).into_iter().map(|expected| expected.0).collect();
            for (place, (got, expected)) in reference::run(worker, &script).into_iter().zip(expected).enumerate() {
                assert_eq!(got, expected, "seed {seed}, step {place}: {:?}", script.steps[place]);
            }
        }
    });
}

#[test]
fn the_operator_agrees_with_the_rules_on_one_worker() {
    campaign(seeds(1), 1);
}

#[test]
fn the_operator_agrees_with_the_rules_on_two_workers() {
    campaign(seeds(2), 2);
}

#[test]
fn the_operator_agrees_with_the_rules_on_three_workers() {
    campaign(seeds(3), 3);
}

#[test]
fn join_core_with_a_feedback_agrees_with_the_rules_on_the_first_scripts() {
    reference_campaign(seeds(1));
}

#[test]
fn join_core_with_a_feedback_agrees_with_the_rules_on_the_second_scripts() {
    reference_campaign(seeds(2));
}

#[test]
fn join_core_with_a_feedback_agrees_with_the_rules_on_the_third_scripts() {
    reference_campaign(seeds(3));
}
