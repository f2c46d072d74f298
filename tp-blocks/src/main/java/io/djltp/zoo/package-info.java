/**
 * Models that DJL finds, loads and serves like any other, computed by as many ranks as asked for.
 */
@NullMarked
package io.djltp.zoo;

import org.jspecify.annotations.NullMarked;
