package io.djltp.examples.plan;

import io.djltp.cost.LayerCost;

import java.util.List;

/**
 * Layers that are shown together: one alone, or those of equal blocks, of which one is shown.
 *
 * @param name what the blocks are called
 * @param times how many there are
 * @param shown the layers of the first of them
 * @param names what these layers are called in it
 * @param all the layers of all of them
 */
record LayerGroup(
        String name, int times, List<LayerCost> shown, List<String> names, List<LayerCost> all) {

    /** Returns such as {@code 6 × layer}. */
    String title() {
        return times == 1 ? name : times + " × " + name;
    }
}
