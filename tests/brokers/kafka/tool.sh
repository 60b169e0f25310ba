#!/bin/bash
# usage: tool.sh TOOL ARGUMENT...
#
# Runs one of Kafka's own Java tools from the broker's jars: the client that checks ours.
#   topics groups offsets         administration: kafka-topics, kafka-consumer-groups, kafka-get-offsets
#   acls sizes                    kafka-acls, kafka-log-dirs
#   produce consume               the console clients: kafka-console-producer, kafka-console-consumer
set -eu
here=$(cd "$(dirname "$0")" && pwd)
case ${1:-} in
  topics) class=org.apache.kafka.tools.TopicCommand ;;
  groups) class=org.apache.kafka.tools.consumer.group.ConsumerGroupCommand ;;
  offsets) class=org.apache.kafka.tools.GetOffsetShell ;;
  acls) class=org.apache.kafka.tools.AclCommand ;;
  sizes) class=org.apache.kafka.tools.LogDirsCommand ;;
  produce) class=org.apache.kafka.tools.ConsoleProducer ;;
  consume) class=org.apache.kafka.tools.consumer.ConsoleConsumer ;;
  *) sed -n 2,7p "$0" | cut -c3- >&2; exit 2 ;;
esac
shift
. "$here/jars.sh"
exec java -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xmx256m -Dlog4j2.configurationFile="$here/log4j2.properties" \
  -cp "$jars/*" "$class" "$@"
