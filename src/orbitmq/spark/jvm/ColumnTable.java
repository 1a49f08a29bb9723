package orbitmq.spark;

import java.io.File;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.SupportsPushDownFilters;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScanBuilder;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Option;

/** A table of ours as Spark's optimizer sees it: it can be asked for some columns. Writing is left as it is. */
class ColumnTable implements SupportsRead, SupportsWrite {
    /** Read where a query needs no column at all: it costs nothing to make. */
    private static final String CHEAPEST = "queue_id";

    private final PythonTable table;

    ColumnTable(PythonTable table) {
        this.table = table;
    }

    public String name() {
        return table.name();
    }

    public Set capabilities() {
        return table.capabilities();
    }

    public StructType schema() {
        return table.schema();
    }

    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
        return table.newWriteBuilder(info);
    }

    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
        return new Builder(table, options);
    }

    public boolean equals(Object other) {
        return other instanceof ColumnTable && ((ColumnTable) other).table == table;
    }

    public int hashCode() {
        return table.hashCode();
    }

    static class Builder implements ScanBuilder, SupportsPushDownFilters, SupportsPushDownRequiredColumns {
        private final PythonTable table;
        private final CaseInsensitiveStringMap options;
        private Filter[] conditions = new Filter[0];
        private StructType wanted;

        Builder(PythonTable table, CaseInsensitiveStringMap options) {
            this.table = table;
            this.options = options;
            this.wanted = table.schema();
        }

        /** Our sources read less where they can, and leave every condition to Spark all the same. */
        public Filter[] pushFilters(Filter[] filters) {
            conditions = filters;
            return filters;
        }

        public Filter[] pushedFilters() {
            return new Filter[0];
        }

        public void pruneColumns(StructType required) {
            StructType all = table.schema();
            if (required.length() > 0) wanted = required;
            else if (all.getFieldIndex(CHEAPEST).isDefined()) wanted = new StructType().add(all.apply(CHEAPEST));
        }

        public Scan build() {
            // What Spark has planned stays with this object: a new one for each query.
            PythonDataSourceV2 source = new PythonDataSourceV2();
            source.setShortName(table.name());
            PythonDataSourceV2 first = (PythonDataSourceV2) Private.get(table, "ds");
            Private.set(source, "dataSourceInPython",
                        first.getOrCreateDataSourceInPython(table.name(), options, Option.apply(table.schema())));
            String store = placedIn();
            StructType asked = store == null ? wanted : PlacedBodies.asked(wanted, store);
            PythonScanBuilder builder = new PythonScanBuilder(source, table.name(), asked, options);
            Filter[] known = understood();
            if (known.length > 0) builder.pushFilters(known);
            return new ColumnScan(builder.build(), wanted, store);
        }

        /** The directory of the store whose log bodies can be taken from; null if they come from elsewhere. */
        private String placedIn() {
            String path = options.get("path");
            if (!table.name().equals("orbitmq-store") || path == null || path.startsWith("~")) return null;
            return wanted.getFieldIndex(PlacedBodies.COLUMN).isDefined() ? new File(path).toPath().toAbsolutePath().normalize().toString() : null;
        }

        /** Spark has to know the type that a condition is about. Nothing is read less for what it says about bodies. */
        private Filter[] understood() {
            ArrayList found = new ArrayList();
            for (int i = 0; i < conditions.length; i++) {
                if (!Arrays.asList(conditions[i].references()).contains(PlacedBodies.COLUMN)) found.add(conditions[i]);
            }
            return (Filter[]) found.toArray(new Filter[0]);
        }
    }
}
