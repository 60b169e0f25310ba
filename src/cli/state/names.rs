//! What people call the sides and splits of a job, as far as its settings tell.

use crate::checkpoint::Identity;
use crate::message::SplitId;

/// The names of a job's sides and of the topics they read.
pub(super) struct Names {
    sides: Vec<(String, Vec<String>)>,
}

impl Names {
    /// From the settings that the sync job writes into its store.
    pub fn new(identity: &Identity) -> Self {
        let find = |name: String| identity.settings.iter().find(|(other, _)| *other == name).map(|(_, value)| value);
        let side = |number| {
            let topic = find(format!("topic of side {number}"))?;
            // A list of topics, each perhaps with some of its partitions; those of a regular expression cannot be told.
            let topics = topic.split(',').map(|topic| topic.split('[').next().unwrap_or_default().trim().to_owned());
            let topics = std::iter::once(topic.clone()).chain(topics).collect();
            Some((find(format!("side {number}"))?.clone(), topics))
        };
        Names { sides: (0usize..).map_while(side).collect() }
    }

    /// `0 one`, or the number alone.
    pub fn side(&self, side: usize) -> String {
        self.sides.get(side).map_or_else(|| side.to_string(), |(name, _)| format!("{side} {name}"))
    }

    /// `one[3]`, if the topic is known by its name.
    pub fn known_split(&self, side: usize, split: SplitId) -> Option<String> {
        let (_, topics) = self.sides.get(side)?;
        let topic = topics.iter().find(|topic| SplitId::numbered(topic, split.number()) == split)?;
        Some(format!("{topic}[{}]", split.number()))
    }

    /// `one[3]`, or the id.
    pub fn split(&self, side: usize, split: SplitId) -> String {
        self.known_split(side, split).unwrap_or_else(|| split.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_of_named_topics_are_named() {
        let settings =
            [("side 0", "A"), ("topic of side 0", "one"), ("side 1", "B"), ("topic of side 1", "two, three[0,2]")];
        let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let names = Names::new(&Identity { job: String::new(), settings });
        assert_eq!((names.side(1), names.side(2)), ("1 B".to_owned(), "2".to_owned()));
        assert_eq!(names.split(0, SplitId::numbered("one", 3)), "one[3]");
        assert_eq!(names.split(1, SplitId::numbered("three", 2)), "three[2]");
        let other = SplitId::numbered("other", 2);
        assert_eq!((names.known_split(1, other), names.split(9, other)), (None, other.to_string()));
    }
}
