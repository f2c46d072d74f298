package io.djltp.layout;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;

import java.util.HashMap;
import java.util.IdentityHashMap;
import java.util.Map;

/**
 * The managers of the regions of a pass. An operation of DJL attaches its result to the manager of
 * its first operand, so that an array is in the region of its manager.
 */
final class RegionScopes {

    private static final int DEEPEST = 32; // managers between an array and that of its region

    private final NDManager manager; // or null: there are none
    private final Map<NDArray, Place> arrays = new IdentityHashMap<>();
    private final Map<NDManager, Place> places = new IdentityHashMap<>();
    private final Map<Region, NDManager> managers = new HashMap<>();

    /**
     * Where an array is.
     *
     * @param region the region
     * @param layout how the features are cut, or {@code null} if they are not
     * @param tokens how the tokens are cut, or {@code null} if they are not
     */
    record Place(Region region, ShardedLayout layout, TokenCut tokens) {

        Place(Region region, ShardedLayout layout) {
            this(region, layout, null);
        }
    }

    RegionScopes(NDManager manager, Region start) {
        this.manager = manager;
        if (manager != null) {
            places.put(manager, new Place(start, null));
            managers.put(start, manager);
        }
    }

    /** Returns whether an array was ever taken into a region. */
    boolean has(Region region) {
        return managers.containsKey(region);
    }

    /** Notes where an array is, whatever its manager. */
    void note(NDArray array, Place place) {
        arrays.put(array, place);
    }

    /** Returns where an array is, or {@code null} if that is not known. */
    Place placeOf(NDArray array) {
        Place noted = arrays.get(array);
        if (noted != null || places.isEmpty()) {
            return noted;
        }
        NDManager at = array.getManager();
        for (int i = 0; i < DEEPEST && at != null; i++) {
            Place place = places.get(at);
            if (place != null) {
                return place;
            }
            NDManager parent = at.getParentManager();
            at = parent == at ? null : parent;
        }
        return null;
    }

    /** Takes an array into a region. */
    void attach(NDArray array, Region region) {
        if (manager != null) {
            array.attach(managers.computeIfAbsent(region, key -> scope(new Place(key, null))));
        }
    }

    /** Takes an array, and what is computed of it, into a region of its own. */
    void attach(NDArray array, Place place) {
        if (manager != null) {
            array.attach(scope(place));
        }
    }

    private NDManager scope(Place place) {
        NDManager scope = manager.newSubManager();
        places.put(scope, place);
        return scope;
    }
}
