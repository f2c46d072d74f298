/**
 * Models that DJL finds, loads and serves like any other, computed by as many ranks as asked for.
 */
package io.djltp.zoo;
