package orbitmq.spark;

import org.apache.spark.api.python.ChainedPythonFunctions;
import org.apache.spark.api.python.PythonEvalType;
import org.apache.spark.api.python.PythonFunction;
import org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource;
import org.apache.spark.sql.execution.python.ArrowPythonRunner;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.StructType;
import scala.Option;
import scala.Tuple2;
import scala.collection.immutable.Map;
import scala.collection.immutable.Seq;

/** Runs the read function of a Python source in one of Spark's workers, as Spark does, up to the batches it makes. */
class PythonBatches extends ArrowPythonRunner {
    PythonBatches(PythonFunction read, SQLConf conf, Map metrics, Option artifacts, Option session) {
        super(only(new Tuple2(new ChainedPythonFunctions(only(read)), Long.valueOf(0))), PythonEvalType.SQL_MAP_ARROW_ITER_UDF(),
              new int[][] {{0}}, new StructType().add("struct", UserDefinedPythonDataSource.readInputSchema()),
              conf.sessionLocalTimeZone(), conf.arrowUseLargeVarTypes(), ArrowPythonRunner.getPythonRunnerConfMap(conf), metrics,
              artifacts, session);
    }

    private static Seq only(Object one) {
        return scala.collection.immutable.Nil$.MODULE$.$colon$colon(one);
    }
}
