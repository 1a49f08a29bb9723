package orbitmq.spark;

import java.io.File;
import java.io.IOException;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.OpenOption;
import java.nio.file.StandardOpenOption;
import java.util.Map;
import java.util.TreeMap;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.MetadataBuilder;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarArray;
import org.apache.spark.sql.vectorized.ColumnarMap;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Bodies that the store reader leaves where they are: it hands over their places in the log, and they are taken from
 * there when a query looks at them. What is not simply bytes in the log (compressed, one of a batch) it hands over whole.
 */
public class PlacedBodies extends ColumnVector {
    static final String COLUMN = "body";

    private final ArrowColumnVector places, sizes, bytes;
    private final Log log;

    PlacedBodies(ArrowColumnVector given, Log log) {
        super(DataTypes.BinaryType);
        this.places = given.getChild(0);
        this.sizes = given.getChild(1);
        this.bytes = given.getChild(2);
        this.log = log;
    }

    /** The schema to ask Python for: where bodies come from this store, their places. The names are those that it knows. */
    static StructType asked(StructType wanted, String store) {
        StructType asked = new StructType();
        for (int i = 0; i < wanted.length(); i++) {
            StructField field = wanted.apply(i);
            if (field.name().equals(COLUMN)) {
                StructType placed = new StructType().add("place", DataTypes.LongType).add("size", DataTypes.IntegerType)
                    .add("bytes", DataTypes.BinaryType);
                field = new StructField(COLUMN, placed, true, new MetadataBuilder().putString("orbitmq.store", store).build());
            }
            asked = asked.add(field);
        }
        return asked;
    }

    public byte[] getBinary(int row) {
        if (!bytes.isNullAt(row)) return bytes.getBinary(row);
        int size = sizes.getInt(row);
        return size < 0 ? null : log.read(places.getLong(row), size);
    }

    public boolean isNullAt(int row) {
        return bytes.isNullAt(row) && sizes.getInt(row) < 0;
    }

    public boolean hasNull() {
        return true;
    }

    public int numNulls() {
        return 0;
    }

    /** Its parts belong to the batch. */
    public void close() {}

    public boolean getBoolean(int row) {
        throw notBytes();
    }

    public byte getByte(int row) {
        throw notBytes();
    }

    public short getShort(int row) {
        throw notBytes();
    }

    public int getInt(int row) {
        throw notBytes();
    }

    public long getLong(int row) {
        throw notBytes();
    }

    public float getFloat(int row) {
        throw notBytes();
    }

    public double getDouble(int row) {
        throw notBytes();
    }

    public ColumnarArray getArray(int row) {
        throw notBytes();
    }

    public ColumnarMap getMap(int row) {
        throw notBytes();
    }

    public Decimal getDecimal(int row, int precision, int scale) {
        throw notBytes();
    }

    public UTF8String getUTF8String(int row) {
        throw notBytes();
    }

    public ColumnVector getChild(int ordinal) {
        throw notBytes();
    }

    private static UnsupportedOperationException notBytes() {
        return new UnsupportedOperationException("a body is bytes");
    }

    /** The log of a store, as one task reads it. Its files are named by the offsets at which they begin. */
    public static class Log {
        private final File directory;
        private final TreeMap files = new TreeMap();
        private MappedByteBuffer file;
        private long begin, end; // of that file: the next body lies there, too

        public Log(String store) {
            directory = new File(store, "commitlog");
        }

        public byte[] read(long place, int size) {
            if (place < begin || place + size > end) open(place, size);
            byte[] body = new byte[size];
            file.get((int) (place - begin), body);
            return body;
        }

        private void open(long place, int size) {
            Long base = (Long) files.floorKey(Long.valueOf(place));
            if (base == null || place + size > base.longValue() + ((MappedByteBuffer) files.get(base)).capacity()) {
                base = map(place);
            }
            file = (MappedByteBuffer) files.get(base);
            begin = base.longValue();
            end = begin + file.capacity();
            if (place + size > end) throw new IllegalStateException("the log in " + directory + " ends before a message at " + place);
        }

        private Long map(long place) {
            String[] names = directory.list();
            long base = -1;
            for (int i = 0; names != null && i < names.length; i++) {
                if (!names[i].matches("[0-9]{20}")) continue;
                long begins = Long.parseLong(names[i]);
                if (begins <= place && begins > base) base = begins;
            }
            if (base < 0) throw gone(place, null);
            try {
                FileChannel channel = FileChannel.open(new File(directory, String.format("%020d", new Object[] {Long.valueOf(base)})).toPath(),
                                                       new OpenOption[] {StandardOpenOption.READ});
                try {
                    files.put(Long.valueOf(base), channel.map(FileChannel.MapMode.READ_ONLY, 0, channel.size()));
                } finally {
                    channel.close();
                }
            } catch (IOException error) {
                throw gone(place, error);
            }
            return Long.valueOf(base);
        }

        private IllegalStateException gone(long place, IOException why) {
            return new IllegalStateException("the file of the log in " + directory + " that held a message at " + place
                                             + " is gone: it was cleaned away while it was read; read again from what is left", why);
        }
    }
}
