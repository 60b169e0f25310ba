//! Which topics and partitions a source reads, as a text says it.
//!
//! | text | reads |
//! |---|---|
//! | `orders` | the topic `orders` |
//! | `orders,payments` | both |
//! | `orders[0,2]` | these partitions of it; in lists too: `orders[0,2],payments` |
//! | `^orders-.*` | every topic whose whole name the regular expression describes, also those that are made later |
//!
//! A text that begins with `^` is one regular expression, commas and brackets and all. It knows ASCII only, as names of topics
//! do; topics of Kafka itself (`__consumer_offsets`) are never meant.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use regex_automata::dfa::Automaton;
use regex_automata::dfa::dense::{Config, DFA};
use regex_automata::util::syntax;
use regex_automata::{Anchored, Input};

use super::config::topic_problem;
use crate::error::{Error, ErrorKind, Result};
use crate::message::{Split, SplitId};

/// Partitions are below it, because that is what split ids have room for.
const MAX_PARTITIONS: u32 = 1 << 24;

/// The largest automaton of a regular expression, in bytes.
const MAX_PATTERN_BYTES: usize = 4 << 20;

/// Topics that Kafka keeps for itself.
const INTERNAL: [&str; 4] = ["__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"];

/// The topics of a source.
#[derive(Clone, Debug)]
pub(super) enum Topics {
    /// By name; not empty.
    Named(Vec<Named>),
    /// By a regular expression.
    Pattern(Pattern),
}

/// A topic by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub name: String,
    /// Only these; otherwise all there are.
    pub partitions: Option<BTreeSet<u32>>,
}

/// A regular expression that describes whole names.
#[derive(Clone)]
pub(super) struct Pattern {
    text: String,
    dfa: Arc<DFA<Vec<u32>>>,
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pattern").field(&self.text).finish()
    }
}

impl Topics {
    /// Reads the text; gives every problem.
    pub fn parse(text: &str) -> Result<Topics, Vec<String>> {
        if let Some(pattern) = text.strip_prefix('^') {
            return Pattern::new(text, pattern).map(Topics::Pattern).map_err(|problem| vec![problem]);
        }
        let (mut named, mut problems) = (Vec::<Named>::new(), Vec::new());
        for part in split_list(text) {
            match Named::parse(part) {
                Ok(new) if named.iter().any(|other| other.name == new.name) => {
                    problems.push(format!("topic {:?} is named twice in {text:?}: name it once", new.name));
                }
                Ok(new) => named.push(new),
                Err(problem) => problems.push(problem),
            }
        }
        if problems.is_empty() { Ok(Topics::Named(named)) } else { Err(problems) }
    }

    /// The name of the topic, if it can only be one.
    pub fn single(&self) -> Option<&str> {
        match self {
            Topics::Named(named) if named.len() == 1 => Some(&named[0].name),
            _ => None,
        }
    }

    /// Whether this partition of a topic is read.
    pub fn reads(&self, topic: &str, partition: u32) -> bool {
        match self {
            Topics::Named(named) => {
                let found = named.iter().find(|named| named.name == topic);
                found.is_some_and(|named| named.partitions.as_ref().is_none_or(|some| some.contains(&partition)))
            }
            Topics::Pattern(pattern) => pattern.matches(topic),
        }
    }

    /// Whether both read the same partition, as far as texts can tell: not of two regular expressions.
    pub fn overlap(&self, other: &Topics) -> bool {
        match (self, other) {
            (Topics::Pattern(one), Topics::Pattern(two)) => one.text == two.text,
            (Topics::Pattern(pattern), Topics::Named(named)) | (Topics::Named(named), Topics::Pattern(pattern)) => {
                named.iter().any(|named| pattern.matches(&named.name))
            }
            (Topics::Named(one), Topics::Named(two)) => {
                let same = |one: &Named, two: &Named| match (&one.partitions, &two.partitions) {
                    _ if one.name != two.name => false,
                    (Some(one), Some(two)) => !one.is_disjoint(two),
                    _ => true,
                };
                one.iter().any(|one| two.iter().any(|two| same(one, two)))
            }
        }
    }

    /// The split of a partition. Of one topic the ordinal is the partition; of several it begins at a place that the topic's
    /// name alone tells, so that a topic found late moves no other and small topics do not all meet on one worker.
    pub fn split(&self, topic: &str, partition: u32) -> Split {
        let begin = match self.single() {
            Some(_) => 0,
            None => xxhash_rust::xxh3::xxh3_64(topic.as_bytes()) as u32,
        };
        Split {
            id: SplitId::numbered(topic, partition),
            ordinal: begin.wrapping_add(partition),
            name: format!("{topic}[{partition}]"),
        }
    }
}

/// Splits at the commas that are in no brackets.
fn split_list(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    text.split(move |c| {
        match c {
            '[' => depth += 1,
            ']' => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0
    })
}

impl Named {
    fn parse(text: &str) -> Result<Named, String> {
        if text.starts_with('^') {
            return Err(format!(
                "{text:?}: a regular expression cannot be part of a list: write one that means them all"
            ));
        }
        let (name, partitions) = match text.split_once('[') {
            Some((name, rest)) => {
                let form = || format!("{text:?}: write the partitions of a topic as {name}[0,2]");
                let numbers = rest.strip_suffix(']').ok_or_else(form)?;
                let mut partitions = BTreeSet::new();
                for number in numbers.split(',') {
                    let partition = number.trim().parse().map_err(|_| form())?;
                    if partition >= MAX_PARTITIONS {
                        return Err(format!("{text:?}: partition {partition} is too large, at most 2^24 can be read"));
                    }
                    if !partitions.insert(partition) {
                        return Err(format!("{text:?}: partition {partition} is named twice: name it once"));
                    }
                }
                (name, Some(partitions))
            }
            None => (text, None),
        };
        match topic_problem(name) {
            Some(problem) => Err(problem),
            None => Ok(Named { name: name.to_owned(), partitions }),
        }
    }
}

impl Pattern {
    fn new(text: &str, pattern: &str) -> Result<Pattern, String> {
        let config =
            Config::new().dfa_size_limit(Some(MAX_PATTERN_BYTES)).determinize_size_limit(Some(MAX_PATTERN_BYTES));
        let built = DFA::builder()
            .configure(config)
            .syntax(syntax::Config::new().unicode(false).utf8(false))
            .build(&format!("(?:{pattern})\\z"));
        match built {
            Ok(dfa) => Ok(Pattern { text: text.to_owned(), dfa: Arc::new(dfa) }),
            Err(error) => {
                // The reason is at the end: of the chain of errors, and of the parser's text, before which comes a drawing.
                let chain = std::iter::successors(Some(&error as &dyn std::error::Error), |error| error.source());
                let reason = chain.last().map(ToString::to_string).unwrap_or_default();
                let reason = reason.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
                Err(format!("{text:?} is not a regular expression for topics: {reason}"))
            }
        }
    }

    fn matches(&self, topic: &str) -> bool {
        let input = Input::new(topic).anchored(Anchored::Yes);
        // A search can only fail in automata that were told to give up, which this one was not.
        !INTERNAL.contains(&topic) && self.dfa.try_search_fwd(&input).is_ok_and(|found| found.is_some())
    }
}

/// Topics by the ids of their splits: what a source has seen, for its readers and committers too.
#[derive(Clone, Debug, Default)]
pub(super) struct Names(Arc<Mutex<BTreeMap<SplitId, Arc<str>>>>);

impl Names {
    /// Remembers the topic of a split that a source described, and returns it with the partition.
    pub fn learn(&self, split: &Split) -> Result<(Arc<str>, i32)> {
        let known = self.of(split.id);
        if known.is_ok() {
            return known;
        }
        let topic = split.name.rsplit_once('[').map_or("", |(topic, _)| topic);
        if SplitId::numbered(topic, split.id.number()) != split.id {
            return Err(Error::new(ErrorKind::NotFound, format!("split {:?} is not one of Kafka", split.name)));
        }
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(split.id.first(), topic.into());
        self.of(split.id)
    }

    /// The topic and the partition of a split.
    pub fn of(&self, split: SplitId) -> Result<(Arc<str>, i32)> {
        let topics = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match (topics.get(&split.first()), i32::try_from(split.number())) {
            (Some(topic), Ok(partition)) => Ok((Arc::clone(topic), partition)),
            _ => Err(Error::new(ErrorKind::NotFound, format!("split {split} is of no Kafka topic that was seen"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> String {
        Topics::parse(text).expect_err(text).join("; ")
    }

    #[test]
    fn lists_partitions_and_patterns_are_told_apart() {
        let reads = |text: &str, topic: &str, partition| Topics::parse(text).unwrap().reads(topic, partition);
        assert!(reads("a", "a", 7) && !reads("a", "b", 7));
        assert!(reads("a,b", "b", 0) && !reads("a,b", "a,b", 0));
        assert!(reads("a[0,2],b", "a", 2) && !reads("a[0,2],b", "a", 1) && reads("a[0,2],b", "b", 1));
        assert!(reads(r"^a\d{1,2}", "a12", 0) && reads("^a[0,2]", "a2", 5) && reads("^x|ab", "ab", 0));
        assert!(reads(r"^(?i)A\.b", "a.B", 0) && reads("^__.*", "__mine", 0));
        // The whole name, and nothing of Kafka's own.
        for (text, topic) in
            [("^a", "ab"), ("^a", "ba"), ("^.*", "__consumer_offsets"), ("^x|a", "ab"), (r"^a\.b", "axb")]
        {
            assert!(!reads(text, topic, 0), "{text} {topic}");
        }
        let single = |text: &str| Topics::parse(text).unwrap().single().map(str::to_owned);
        assert_eq!(single("a[1]").as_deref(), Some("a"));
        assert_eq!((single("a,b"), single("^a")), (None, None));
    }

    #[test]
    fn every_problem_of_a_list_is_named() {
        let text = problems("a/b,c[x],,d[1,1],e[2,^f,g");
        assert_eq!(text.matches("; ").count(), 4, "{text}");
        for part in ["\"a/b\" cannot be", "c[0,2]", "needs a name", "partition 1 is named twice", "e[0,2]"] {
            assert!(text.contains(part), "{part} is not in: {text}");
        }
        assert!(problems("a,^b").contains("cannot be part of a list"));
        assert!(problems("a,a[1]").contains("named twice"));
        assert!(problems("a[16777216]").contains("too large"));
        let text = problems("^a(b");
        assert!(text.contains("unclosed group") && !text.contains('\n'), "{text}");
        assert!(problems("^(a{1000}){1000}").contains("not a regular expression"));
    }

    #[test]
    fn what_two_texts_share_is_known_as_far_as_it_can_be() {
        let overlap = |one: &str, two: &str| Topics::parse(one).unwrap().overlap(&Topics::parse(two).unwrap());
        for (one, two) in [("a", "b,a"), ("a[1]", "a"), ("a[1,2]", "a[2]"), ("^a.*", "ab,c"), ("x", "^x"), ("^x", "^x")]
        {
            assert!(overlap(one, two) && overlap(two, one), "{one} {two}");
        }
        for (one, two) in [("a", "b"), ("a[1]", "a[2]"), ("^a", "b"), ("^a.*", "^b.*")] {
            assert!(!overlap(one, two) && !overlap(two, one), "{one} {two}");
        }
    }

    #[test]
    fn ordinals_of_one_topic_are_its_partitions_and_those_of_several_are_spread() {
        let one = Topics::parse("a").unwrap();
        assert_eq!((0..3).map(|p| one.split("a", p).ordinal).collect::<Vec<_>>(), [0, 1, 2]);
        let many = Topics::parse("^t.*").unwrap();
        let ordinal = |topic: &str, partition| many.split(topic, partition).ordinal;
        assert_eq!(ordinal("t1", 3).wrapping_sub(ordinal("t1", 0)), 3);
        let odd = (0..100).filter(|topic| ordinal(&format!("t{topic}"), 0) % 2 == 1).count();
        assert!((25..75).contains(&odd), "{odd} of 100 topics of one partition on one of two workers");
        assert_eq!(many.split("t1", 3).id, SplitId::numbered("t1", 3));
    }

    #[test]
    fn names_are_those_of_splits_that_were_seen() {
        let (names, topics) = (Names::default(), Topics::parse("a,b").unwrap());
        assert_eq!(names.of(SplitId::numbered("a", 2)).unwrap_err().kind(), ErrorKind::NotFound);
        let (topic, partition) = names.learn(&topics.split("a", 2)).unwrap();
        assert_eq!((&*topic, partition), ("a", 2));
        assert_eq!(names.of(SplitId::numbered("a", 7)).unwrap().1, 7);
        let foreign = Split { name: "b[0]".to_owned(), ..topics.split("c", 0) };
        assert_eq!(names.learn(&foreign).unwrap_err().kind(), ErrorKind::NotFound);
    }
}
