package devstack

// kafkaPartitions is how many partitions a topic gets that is created by its first use, real or fake: more than one,
// so that a program that relies on an order across keys fails here and not in production.
const kafkaPartitions = 4

// kafkaSettings takes the broker's port, the controller's port and the folder of the data. One node is enough for the
// internal topics, and few partitions make their creation quick; a group starts without waiting for more members.
const kafkaSettings = `process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:%[2]d
listeners=PLAINTEXT://127.0.0.1:%[1]d,CONTROLLER://127.0.0.1:%[2]d
advertised.listeners=PLAINTEXT://127.0.0.1:%[1]d
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
controller.listener.names=CONTROLLER
log.dirs=%[3]s
num.partitions=4
default.replication.factor=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
log.cleaner.dedupe.buffer.size=16777216
`

// kafkaLogging prints what went wrong, to the watchdog's log.
const kafkaLogging = `status=ERROR
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d{ISO8601} %p %m (%c)%n
rootLogger.level=WARN
rootLogger.appenderRef.out.ref=out
`
