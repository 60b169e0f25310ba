//! Jobs whose processes are watched and started again: `--supervise` and `--restart`.
//!
//! Would catch: a process that is left behind, a restart of some of the processes, one of what is wrong for good, one too many; a
//! supervisor that is stopped and leaves its processes, or that ends before them; output that is lost on the way.

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpListener;
use std::process::{Command, Stdio};

use super::{Cluster, DEADLINE, Growing, STOP_WITHIN, addresses, joined, until, words};

impl Cluster {
    /// Starts a supervisor; with a hostfile for so many processes, if that is not 0.
    fn supervise(growing: &Growing, more: &str, hosts: usize) -> Self {
        let mut cluster = Cluster { children: vec![], dir: tempfile::tempdir().unwrap() };
        let mut args = growing.args(300);
        args.extend(words(more));
        if hosts > 0 {
            let hosts = cluster.write_hosts("hosts", &addresses(hosts));
            args.extend(words(&format!("-h {}", hosts.display())));
        }
        args.extend(["--backendFolder".to_owned(), cluster.dir.path().join("state").display().to_string()]);
        cluster.spawn(&args, 0);
        cluster
    }

    /// The process ids of all that were started, in this order.
    fn started(&self) -> Vec<u32> {
        let said = self.text("stderr-0");
        let lines = said.lines().filter(|line| line.contains("is started"));
        lines
            .map(|line| line.split("pid=").nth(1).unwrap().split_whitespace().next().unwrap().parse().unwrap())
            .collect()
    }

    fn until_pairs(&self, growing: &Growing, keys: std::ops::Range<u64>) {
        growing.append("one-p0", &keys.clone().collect::<Vec<_>>());
        growing.append("two-p0", &keys.clone().collect::<Vec<_>>());
        let expected: BTreeSet<String> = joined(0..keys.end).into_iter().collect();
        until("the pairs are joined", DEADLINE, || expected.is_subset(&self.lines("sync").into_iter().collect()));
    }
}

fn send(signal: &str, pid: u32) -> bool {
    let kill = Command::new("kill").args(["-s", signal, &pid.to_string()]).stderr(Stdio::null()).status();
    kill.unwrap().success()
}

fn until_gone(pids: &[u32]) {
    until("the processes are gone", DEADLINE, || !pids.iter().any(|pid| send("0", *pid)));
}

#[test]
fn all_processes_are_started_again_when_one_is_killed_and_nothing_is_lost() {
    let growing = Growing::new();
    let mut cluster = Cluster::supervise(&growing, "-n 3 --supervise --restart forever --restart_delay 1s", 3);
    cluster.until_pairs(&growing, 0..10);
    growing.append("one-p1", &(100..110).collect::<Vec<_>>()); // wait for their partners, also over the restart
    for round in 1..3 {
        let before = cluster.started();
        assert_eq!(before.len(), 3 * round);
        assert!(send("KILL", before[before.len() - 1 - round]));
        until("all are started again", DEADLINE, || cluster.started().len() == 3 * (round + 1));
        until_gone(&before);
        cluster.until_pairs(&growing, 10 * round as u64..10 * (round as u64 + 1));
    }
    growing.append("two-p0", &(100..110).collect::<Vec<_>>());
    let expected: BTreeSet<String> = joined((0..30).chain(100..110)).into_iter().collect();
    let found = || cluster.lines("sync").into_iter().collect::<BTreeSet<_>>();
    until("those that waited are joined", DEADLINE, || found().len() == expected.len());
    assert_eq!(found(), expected);
    let last = cluster.started();
    cluster.signal(0, "TERM");
    assert_eq!(cluster.wait(STOP_WITHIN), [Some(0)], "{}", cluster.text("stderr-0"));
    assert!(!last.iter().any(|pid| send("0", *pid)), "a process was left behind");
    let said = cluster.text("stderr-0");
    assert!(said.contains("process 1 of the job was killed by signal 9; restart 1 in 1s"), "{said}");
    assert!(said.contains("going on from a checkpoint"), "{said}");
    let reports = cluster.text("stdout-0").matches("conservation:").count();
    assert_eq!(reports, 2, "one of each run whose first process was not killed");
}

#[test]
fn what_fails_again_and_again_is_given_up() {
    let growing = Growing::new();
    fs::write(growing.path("one-p2"), "nonsense\n").unwrap();
    let mut cluster = Cluster::supervise(&growing, "-n 2 --supervise --restart 2 --restart_delay 100ms", 2);
    assert_eq!(cluster.wait(DEADLINE), [Some(1)]);
    let said = cluster.text("stderr-0");
    assert_eq!(cluster.started().len(), 6, "{said}");
    assert!(said.contains("restart 2 of 2 in 100ms"), "{said}");
    assert!(said.contains("has failed, it says why above, and --restart 2 allows no more in a row"), "{said}");
    assert!(said.contains("message at offset 0 of split \"one-p2.jsonl\""), "{said}");
}

#[test]
fn what_no_restart_would_mend_is_not_started_again() {
    let growing = Growing::new();
    let mut cluster = Cluster::supervise(&growing, "--restart forever", 0);
    cluster.until_pairs(&growing, 0..1);
    cluster.signal(0, "INT");
    assert_eq!(cluster.wait(STOP_WITHIN), [Some(0)], "{}", cluster.text("stderr-0"));
    let mut args = growing.args(300);
    args.extend(words("--late drop --restart forever -n 2 --supervise --backendFolder"));
    args.push(cluster.dir.path().join("state").display().to_string());
    args.push(format!("--hostfile={}", cluster.write_hosts("hosts", &addresses(2)).display()));
    cluster.spawn(&args, 0);
    assert_eq!(cluster.wait(DEADLINE), [Some(0), Some(2)]);
    let said = cluster.text("stderr-1");
    assert!(said.contains("--accept_changes") && said.contains("it is of no use to start it again as it is"), "{said}");
    assert!(!said.contains("restart 1"), "{said}");
}

#[test]
fn processes_end_when_their_supervisor_is_killed() {
    let growing = Growing::new();
    let mut cluster = Cluster::supervise(&growing, "-n 2 --supervise --restart forever", 2);
    cluster.until_pairs(&growing, 0..1);
    let started = cluster.started();
    assert_eq!(started.len(), 2);
    cluster.signal(0, "KILL");
    cluster.wait(DEADLINE);
    until_gone(&started);
    let said = cluster.text("stderr-0");
    assert!(said.contains("the supervisor is gone"), "{said}");
}

#[test]
fn ports_that_are_taken_are_not_used() {
    let taken = TcpListener::bind("127.0.0.1:2101"); // or somebody else has it
    let growing = Growing::new();
    let mut cluster = Cluster::supervise(&growing, "-n 2 -w 2 --supervise", 0);
    cluster.until_pairs(&growing, 0..5);
    drop(taken);
    // Without --restart a failure of one is that of all.
    assert!(send("KILL", cluster.started()[1]));
    assert_eq!(cluster.wait(DEADLINE), [Some(1)]);
    let said = cluster.text("stderr-0");
    assert!(said.contains("syncline: process 1 of the job was killed by signal 9"), "{said}");
    until_gone(&cluster.started());
}

#[test]
fn a_single_process_is_started_again_where_it_is() {
    let (growing, addresses) = (Growing::new(), addresses(2));
    let mut cluster = Cluster { children: vec![], dir: tempfile::tempdir().unwrap() };
    let hosts = cluster.write_hosts("hosts", &addresses);
    for process in 0..2 {
        let mut args = growing.args(300);
        args.extend(words(&format!("-n 2 -p {process} -h {} --restart forever --backendFolder", hosts.display())));
        args.push(cluster.dir.path().join("state").display().to_string());
        cluster.spawn(&args, 0);
    }
    cluster.until_pairs(&growing, 0..5);
    assert!(send("KILL", cluster.started()[0]));
    cluster.until_pairs(&growing, 5..10); // the other supervisor has started its own again
    cluster.signal(1, "TERM"); // one is enough
    assert_eq!(cluster.wait(STOP_WITHIN), [Some(0), Some(0)], "{}", cluster.text("stderr-0"));
}
