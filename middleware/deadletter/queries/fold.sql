-- Makes few rows of many in claim_failed_count. Waits for nobody.
select {schema}.claim_failed_fold()
