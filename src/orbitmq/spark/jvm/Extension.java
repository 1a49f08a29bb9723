package orbitmq.spark;

import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.streaming.StreamingRelationV2;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.internal.SQLConf;
import scala.Function1;
import scala.runtime.AbstractFunction1;
import scala.runtime.AbstractPartialFunction;
import scala.runtime.BoxedUnit;

/**
 * For spark.sql.extensions: tables of this project's sources, which are written in Python, are read in columns.
 *
 * Spark turns what a Python source hands over into rows, value by value, and asks for every column. With this, batches
 * go on as they are, and only columns that a query needs are asked for. All that is known of messages stays in Python.
 *
 * Compiled by the small compiler that Spark brings along, which knows no type arguments; hence the raw types.
 */
public class Extension extends AbstractFunction1 {
    private static final String SETTING = "spark.orbitmq.inColumns";

    public Object apply(Object extensions) {
        ((SparkSessionExtensions) extensions).injectPostHocResolutionRule(new AbstractFunction1() {
            public Object apply(Object session) {
                return new InColumns();
            }
        });
        return BoxedUnit.UNIT;
    }

    static boolean isOurs(Table table) {
        return table instanceof PythonTable && (table.name().equals("orbitmq") || table.name().equals("orbitmq-store"));
    }

    /** Puts tables of ours in the place of Spark's, unless the session says that it wants rows. */
    static class InColumns extends Rule {
        public TreeNode apply(TreeNode plan) {
            if (!SQLConf.get().getConfString(SETTING, "true").equals("true")) return plan;
            return ((LogicalPlan) plan).transformDown(new Exchanged());
        }
    }

    static class Exchanged extends AbstractPartialFunction {
        public boolean isDefinedAt(Object node) {
            return node instanceof DataSourceV2Relation && isOurs(((DataSourceV2Relation) node).table())
                || node instanceof StreamingRelationV2 && isOurs(((StreamingRelationV2) node).table());
        }

        public Object applyOrElse(Object node, Function1 otherwise) {
            if (!isDefinedAt(node)) return otherwise.apply(node);
            if (node instanceof DataSourceV2Relation) {
                DataSourceV2Relation relation = (DataSourceV2Relation) node;
                ColumnTable table = new ColumnTable((PythonTable) relation.table());
                return relation.copy(table, relation.output(), relation.catalog(), relation.identifier(), relation.options(),
                                     relation.timeTravelSpec());
            }
            StreamingRelationV2 relation = (StreamingRelationV2) node;
            ColumnTable table = new ColumnTable((PythonTable) relation.table());
            return relation.copy(relation.source(), relation.sourceName(), table, relation.extraOptions(), relation.output(),
                                 relation.catalog(), relation.identifier(), relation.v1Relation(),
                                 relation.sourceIdentifyingName());
        }
    }
}
