/**
 * Contains what a language model computes with when it generates: products of few rows by packed
 * weights, and attention over a cache. Rows go in and out as Java arrays.
 */
@NullMarked
package io.djltp.internal.decode;

import org.jspecify.annotations.NullMarked;
