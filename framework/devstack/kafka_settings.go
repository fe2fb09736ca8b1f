package devstack

import (
	"fmt"
	"strings"
)

// kafkaPartitions is the number of partitions of a topic that is created by its first use, real or fake. It is more than one, so that a
// program that relies on an order across keys fails here and not in production.
const kafkaPartitions = 4

// kafkaSettings returns a server.properties. Internal topics have few partitions, so that they are created quickly. A group starts
// without waiting for more members. A killed broker is fenced after six seconds. Each broker is in its own rack: rack-1, rack-2 and so
// on. If a setting appears twice, the last one counts.
func kafkaSettings(plan kafkaPlan, place int, data string) string {
	voters := make([]string, len(plan.controllers))
	for i, address := range plan.controllers {
		voters[i] = fmt.Sprintf("%d@%s", i+1, address)
	}
	replicas := len(plan.brokers)
	inSync := max(replicas-1, 1)
	lines := []string{
		"process.roles=broker,controller",
		fmt.Sprint("node.id=", place+1),
		fmt.Sprint("broker.rack=rack-", place+1),
		"controller.quorum.voters=" + strings.Join(voters, ","),
		fmt.Sprintf("listeners=PLAINTEXT://%s,CONTROLLER://%s", plan.brokers[place], plan.controllers[place]),
		"advertised.listeners=PLAINTEXT://" + plan.brokers[place],
		"listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
		"inter.broker.listener.name=PLAINTEXT",
		"controller.listener.names=CONTROLLER",
		"log.dirs=" + data,
		fmt.Sprint("num.partitions=", kafkaPartitions),
		fmt.Sprint("default.replication.factor=", replicas),
		fmt.Sprint("min.insync.replicas=", inSync),
		fmt.Sprint("offsets.topic.replication.factor=", replicas),
		"offsets.topic.num.partitions=4",
		fmt.Sprint("transaction.state.log.replication.factor=", replicas),
		fmt.Sprint("transaction.state.log.min.isr=", inSync),
		"transaction.state.log.num.partitions=4",
		fmt.Sprint("share.coordinator.state.topic.replication.factor=", replicas),
		fmt.Sprint("share.coordinator.state.topic.min.isr=", inSync),
		"group.initial.rebalance.delay.ms=0",
		"broker.session.timeout.ms=6000",
		"log.cleaner.dedupe.buffer.size=16777216",
	}
	if at := plan.listener(place); at != "" {
		lines = append(lines,
			fmt.Sprintf("listeners=PLAINTEXT://%s,CONTROLLER://%s,EXTRA://%s", plan.brokers[place], plan.controllers[place], at),
			fmt.Sprintf("advertised.listeners=PLAINTEXT://%s,EXTRA://%s", plan.brokers[place], at),
			"listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,EXTRA:"+plan.protocol)
	}
	return strings.Join(append(lines, settings(plan.settings)...), "\n") + "\n"
}

// kafkaLogging prints errors to the watchdog's log.
const kafkaLogging = `status=ERROR
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d{ISO8601} %p %m (%c)%n
rootLogger.level=WARN
rootLogger.appenderRef.out.ref=out
`
