package orbitmq.spark;

import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.v2.python.PythonCustomMetric;
import org.apache.spark.sql.execution.datasources.v2.python.PythonCustomTaskMetric;
import org.apache.spark.sql.execution.datasources.v2.python.PythonInputPartition;
import org.apache.spark.sql.execution.datasources.v2.python.PythonStreamingInputPartition;
import org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.DataType$;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.util.AccumulatorV2;
import scala.Option;
import scala.Tuple2;
import scala.collection.Iterator;
import scala.collection.immutable.Map;

/** Goes to the tasks, with all that Spark's own readers of a Python source know. */
class ColumnReaders implements PartitionReaderFactory {
    private final PartitionReaderFactory rows;
    private final String store;

    /** With a store, bodies are taken from its log. */
    ColumnReaders(PartitionReaderFactory rows, String store) {
        this.rows = rows;
        this.store = store;
    }

    public boolean supportColumnarReads(InputPartition partition) {
        return true;
    }

    public PartitionReader createReader(InputPartition partition) {
        return rows.createReader(partition);
    }

    public PartitionReader createColumnarReader(InputPartition partition) {
        return new Reader(rows, partition, store);
    }

    static class Reader implements PartitionReader {
        private final UserDefinedPythonDataSource source;
        private final StructType schema;
        private final Map metrics = PythonCustomMetric.pythonMetrics();
        private final PlacedBodies.Log log;
        private final Iterator batches;
        private boolean checked;

        Reader(PartitionReaderFactory rows, InputPartition partition, String store) {
            log = store == null ? null : new PlacedBodies.Log(store);
            source = (UserDefinedPythonDataSource) Private.get(rows, "source");
            schema = (StructType) Private.get(rows, "outputSchema");
            PythonBatches worker = new PythonBatches(
                source.createPythonFunction((byte[]) Private.get(rows, "pickledReadFunc")), SQLConf.get(), metrics,
                (Option) Private.get(rows, "jobArtifactUUID"), (Option) Private.get(rows, "sessionUUID"));
            InternalRow given = new GenericInternalRow(new Object[] {pickled(partition)});
            Iterator input = scala.collection.Iterator$.MODULE$.single(new GenericInternalRow(new Object[] {given}));
            TaskContext task = TaskContext.get();
            batches = worker.compute(scala.collection.Iterator$.MODULE$.single(input), task.partitionId(), task);
        }

        private static byte[] pickled(InputPartition partition) {
            if (partition instanceof PythonInputPartition) return ((PythonInputPartition) partition).pickedPartition();
            return ((PythonStreamingInputPartition) partition).pickedPartition();
        }

        public boolean next() {
            return batches.hasNext();
        }

        /** A batch arrives as one column of structs, whose fields are the columns. */
        public Object get() {
            ColumnarBatch given = (ColumnarBatch) batches.next();
            ArrowColumnVector struct = (ArrowColumnVector) given.column(0);
            if (!checked && !DataType$.MODULE$.equalsIgnoreCompatibleNullability(struct.dataType(), schema))
                throw new IllegalStateException("the source made " + struct.dataType() + " instead of " + schema);
            checked = true;
            ColumnVector[] columns = new ColumnVector[schema.length()];
            for (int i = 0; i < columns.length; i++) {
                boolean placed = log != null && schema.apply(i).name().equals(PlacedBodies.COLUMN);
                columns[i] = placed ? new PlacedBodies(struct.getChild(i), log) : struct.getChild(i);
            }
            ColumnarBatch batch = new ColumnarBatch(columns);
            batch.setNumRows(given.numRows());
            return batch;
        }

        public CustomTaskMetric[] currentMetricsValues() {
            CustomTaskMetric[] values = new CustomTaskMetric[metrics.size()];
            Iterator all = metrics.iterator();
            for (int i = 0; i < values.length; i++) {
                Tuple2 metric = (Tuple2) all.next();
                Long value = (Long) ((AccumulatorV2) metric._2()).value();
                values[i] = new PythonCustomTaskMetric((String) metric._1(), value.longValue());
            }
            return values;
        }

        /** The worker goes back to Spark, or ends, with the task. */
        public void close() {}
    }
}
