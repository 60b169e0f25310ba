//! Two topics, differential operators of our own, one output: customers who have paid in more than one way.
//!
//!     cargo run --release --example two_methods -- datasets/orders out [-w WORKERS] [-n PROCESSES -p PROCESS] [-h HOSTS]
//!
//! Writes `out/two_methods-wN.jsonl`: together `examples/expected/two_methods.jsonl`, in another order.

use syncline::broker::{self, BrokerOptions};
use syncline::codec::Json;
use syncline::dataflow::Input;
use syncline::reader::{OnBad, Until};
use syncline::{Job, OutputRecord, Result};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
struct Event {
    #[serde(rename = "orderId")]
    order: String,
    customer: Option<u64>,
    method: Option<String>,
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let (folder, options) = (format!("file:{}", args[1]), BrokerOptions::default());
    let orders = Input::new("orders", broker::source(&folder, "orders", &options)?, Json::<Event>::codec());
    let payments = Input::new("payments", broker::source(&folder, "payments", &options)?, Json::<Event>::codec());
    let [orders, payments] = [orders, payments].map(|input| input.until(Until::End).on_bad(OnBad::Skip));
    let output = broker::sink(&format!("file:{}", args[2]), &options)?;
    Job::new("two methods").run_from_args(args.into_iter().skip(3), move |flow| {
        let orders = flow.collection(&orders)?.map(|event| (event.order, event.customer));
        let payments = flow.collection(&payments)?.map(|event| (event.order, event.method));
        let customers = orders
            .join_map(payments, |_order, customer, method| (*customer, method.clone()))
            .distinct()
            .reduce(|_customer, methods, output| output.extend((methods.len() > 1).then_some(((), 1))))
            .flat_map(|(customer, ())| Some(OutputRecord::from(format!("{{\"customer\":{}}}", customer?))));
        flow.write(&output, vec![("two_methods".into(), flow.appended(customers))])
    })
}
