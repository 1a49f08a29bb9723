package orbitmq.spark;

import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.SupportsAdmissionControl;
import org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow;
import org.apache.spark.sql.types.StructType;

/** Spark's scan of a Python source, whose tasks hand over batches of columns instead of rows. */
class ColumnScan implements Scan {
    private final Scan scan;
    private final StructType schema;
    private final String store;

    /** With a store, the scan hands over places of bodies. */
    ColumnScan(Scan scan, StructType schema, String store) {
        this.scan = scan;
        this.schema = schema;
        this.store = store;
    }

    public StructType readSchema() {
        return schema;
    }

    public String description() {
        return "(Python, in columns)";
    }

    public CustomMetric[] supportedCustomMetrics() {
        return scan.supportedCustomMetrics();
    }

    public Scan.ColumnarSupportMode columnarSupportMode() {
        return Scan.ColumnarSupportMode.SUPPORTED;
    }

    public Batch toBatch() {
        final Batch batch = scan.toBatch();
        return new Batch() {
            public InputPartition[] planInputPartitions() {
                return batch.planInputPartitions();
            }

            public PartitionReaderFactory createReaderFactory() {
                return new ColumnReaders(batch.createReaderFactory(), store);
            }
        };
    }

    public MicroBatchStream toMicroBatchStream(String checkpoint) {
        return new Stream(scan.toMicroBatchStream(checkpoint));
    }

    /** Our streams know both: limits, and triggers that read what is there now. */
    static class Stream implements MicroBatchStream, SupportsAdmissionControl, SupportsTriggerAvailableNow {
        private final MicroBatchStream stream;

        Stream(MicroBatchStream stream) {
            this.stream = stream;
        }

        public Offset initialOffset() {
            return stream.initialOffset();
        }

        public Offset latestOffset() {
            return stream.latestOffset();
        }

        public Offset latestOffset(Offset start, ReadLimit limit) {
            return ((SupportsAdmissionControl) stream).latestOffset(start, limit);
        }

        public ReadLimit getDefaultReadLimit() {
            return ((SupportsAdmissionControl) stream).getDefaultReadLimit();
        }

        public Offset reportLatestOffset() {
            return ((SupportsAdmissionControl) stream).reportLatestOffset();
        }

        public void prepareForTriggerAvailableNow() {
            ((SupportsTriggerAvailableNow) stream).prepareForTriggerAvailableNow();
        }

        public InputPartition[] planInputPartitions(Offset start, Offset end) {
            return stream.planInputPartitions(start, end);
        }

        public PartitionReaderFactory createReaderFactory() {
            return new ColumnReaders(stream.createReaderFactory(), null);
        }

        public Offset deserializeOffset(String json) {
            return stream.deserializeOffset(json);
        }

        public void commit(Offset end) {
            stream.commit(end);
        }

        public void stop() {
            stream.stop();
        }
    }
}
