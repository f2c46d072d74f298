/** Finds the best of many classes for an input, with a model that has been trained. */
@NullMarked
package io.djltp.search;

import org.jspecify.annotations.NullMarked;
