package orbitmq.spark;

import java.lang.reflect.Field;

/** Fields of Spark's classes that it offers no other way to. Those of Scala may have the class's name before their own. */
class Private {
    static Object get(Object owner, String name) {
        try {
            return field(owner.getClass(), name).get(owner);
        } catch (IllegalAccessException error) {
            throw new IllegalStateException(error);
        }
    }

    static void set(Object owner, String name, Object value) {
        try {
            field(owner.getClass(), name).set(owner, value);
        } catch (IllegalAccessException error) {
            throw new IllegalStateException(error);
        }
    }

    private static Field field(Class owner, String name) {
        Field[] all = owner.getDeclaredFields();
        for (int i = 0; i < all.length; i++) {
            String found = all[i].getName();
            if (found.equals(name) || found.endsWith("$$" + name)) {
                all[i].setAccessible(true);
                return all[i];
            }
        }
        throw new IllegalStateException(owner.getName() + " has no field " + name + ": this is not the Spark that this was made for");
    }
}
