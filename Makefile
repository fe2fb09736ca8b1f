# The targets are the stages of .ci/run, which has the commands: "make lint" is ".ci/run lint".
stages := $(shell .ci/run -l) storms
.PHONY: help all $(stages)

help:
	@echo 'make all: every stage, as a change must pass them'
	@echo 'make STAGE: one of $(stages)'

all:
	.ci/run

$(stages):
	.ci/run $@
